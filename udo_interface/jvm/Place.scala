package org.apache.spark.sql.udo

import java.net.InetAddress
import java.util.concurrent.TimeUnit

import org.apache.spark.TaskContext

/** The place that a lane leads to, as errors name it. */
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

/** Pauses of 1, 2, 3 ... increments up to the ceiling (udo_protocol/queue/backoff.py); they end when Spark kills the task. */
private[udo] final class LinearBackoff(incrementUs: Long, ceilingUs: Long) {
  private var pauseUs = 0L

  def atCeiling: Boolean = pauseUs + incrementUs > ceilingUs
  def reset(): Unit = pauseUs = 0

  def pause(): Unit = {
    pauseUs = math.min(pauseUs + incrementUs, ceilingUs)
    TimeUnit.MICROSECONDS.sleep(pauseUs)
    Option(TaskContext.get()).foreach(_.killTaskIfInterrupted()) // unless told to, Spark does not interrupt the thread
  }
}

/** Bounds a wait by the slot's progress: it ends when the slot does not serve, or has answered nothing for too long. */
private[udo] final class ProgressDeadline(end: LaneEnd, place: Place, answerTimeoutMs: Long) {
  import ProgressDeadline._

  private var since = System.nanoTime()
  private var looked = since
  private var emitted = -1L

  /** Restart the deadline, since there was progress. */
  def progress(): Unit = {
    since = System.nanoTime()
    looked = since
    emitted = -1
  }

  /** Raise if waiting any longer is pointless; it looks at the slot only once a second. */
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

  /** Raise an error with the reason if the slot does not serve. */
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
  /** The interval at which a waiting lane checks that the slot still serves. */
  val LookMs = 1000L

  lazy val host: String = InetAddress.getLocalHost.getHostName
}
