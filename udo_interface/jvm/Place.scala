package org.apache.spark.sql.udo

import java.net.InetAddress
import java.util.concurrent.TimeUnit

/** Where a lane leads, as errors tell it. */
private[udo] final case class Place(
    operator: String,
    version: String,
    node: String,
    slot: String,
    deployment: String,
    partition: Int,
    epoch: Long) {
  override def toString: String =
    s"operator $operator@$version (deployment $deployment, node $node, slot $slot, epoch $epoch, partition $partition)"
}

/** Pauses of 1, 2, 3 ... increments up to the ceiling (udo_protocol/queue/backoff.py). */
private[udo] final class LinearBackoff(incrementUs: Long, ceilingUs: Long) {
  private var pauseUs = 0L

  def atCeiling: Boolean = pauseUs + incrementUs > ceilingUs
  def reset(): Unit = pauseUs = 0

  def pause(): Unit = {
    pauseUs = math.min(pauseUs + incrementUs, ceilingUs)
    TimeUnit.MICROSECONDS.sleep(pauseUs)
  }
}

/** Bounds a wait by the slot's progress: it ends when the slot does not serve, or has answered nothing for too long. */
private[udo] final class ProgressDeadline(end: LaneEnd, place: Place, answerTimeoutMs: Long) {
  import ProgressDeadline._

  private var since = System.nanoTime()
  private var looked = since
  private var emitted = -1L

  /** Something came: start anew. */
  def progress(): Unit = {
    since = System.nanoTime()
    looked = since
    emitted = -1
  }

  /** Raise if there is no point in waiting on; it looks at the slot once a second only. */
  def check(awaited: => String): Unit = {
    val now = System.nanoTime()
    if (now - looked < TimeUnit.MILLISECONDS.toNanos(LookMs)) return
    looked = now
    look()
    val found = end.emitted()
    if (found != emitted) { // other lanes' frames are being answered
      emitted = found
      since = now
    }
    val bound = answerTimeoutMs + GraceMs
    if (now - since > TimeUnit.MILLISECONDS.toNanos(bound))
      throw UdoException.byCode(
        "timeout",
        s"$place: waited for $awaited, but the slot has answered nothing for ${bound / 1000} s; " +
          s"look at `udo status` and `udo logs ${place.deployment}`")
  }

  /** Raise the reason why the slot does not serve, if there is one. */
  def look(): Unit = end.status().foreach { why =>
    val message = UdoException.cut(why.path("message").asText("no reason given"), 16000)
    val traceback = UdoException.cut(why.path("traceback").asText(""), 32000).stripTrailing()
    val told = if (traceback.isEmpty) "" else s"\nThe operator's traceback:\n$traceback"
    throw UdoException.byCode(why.path("code").asText("operator"), s"$place does not serve: $message$told")
  }
}

private[udo] object ProgressDeadline {
  /** The node manager answers for a dead or hung operator after the answer time-out; it gets this long to do so. */
  val GraceMs = 15000L
  /** How often a waiting lane looks whether the slot still serves. */
  val LookMs = 1000L

  lazy val host: String = InetAddress.getLocalHost.getHostName
}
