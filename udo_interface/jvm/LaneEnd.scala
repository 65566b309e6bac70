package org.apache.spark.sql.udo

import java.nio.charset.StandardCharsets.UTF_8

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}

import org.apache.arrow.memory.ArrowBuf

/** The outcome of a push; `value` is the route table, or the retained bytes. */
private[udo] final case class Pushed(status: String, value: Any)

/** The bounds in OpenLane's reply. */
private[udo] final case class Bounds(
    windowFrames: Int,
    answerTimeoutMs: Long,
    frameBytes: Long,
    retainedBytes: Long,
    laneTtlMs: Long,
    backoffCeilingUs: Long)

/**
 * The producer's and the collector's side of one lane in one slot, as udo_protocol/queue/lane_end.py. One thread at a time. `part`: the
 * partition of a keyed attempt, whose older attempts, by `order`, the slot refuses.
 */
private[udo] final class LaneEnd(
    connection: Connection,
    slot: SlotAddress,
    val lane: String,
    bounds: Bounds,
    part: String,
    order: String) {
  import LaneEnd._

  val prefix: String = slot.prefix
  /** The version of the route that frames go by. */
  var route: Long = slot.route
  private val (out, bell) = (s"${prefix}out:$lane", s"${prefix}bell:$lane")
  private val backoff = new LinearBackoff(BackoffIncrementUs, bounds.backoffCeilingUs)
  private var collected = 0
  private var inline = false
  connection.bulkBytes = math.max(AnswerBytes, bounds.frameBytes)

  /** Register the lane and the schema of its frames; the lane ends with this connection, however its task dies. */
  def open(schemaId: Array[Byte], schema: Array[Byte]): Unit = {
    val client = connection.call("CLIENT", "ID")
    connection.call("FCALL", "udo_open", 1, prefix, lane, bounds.laneTtlMs, schemaId, schema, client)
  }

  /** The number of lanes open in this slot. */
  def lanes(): Long = connection.call("SCARD", s"${prefix}lanes").asInstanceOf[Long]

  /** Append frame `n` by that version of the route, without waiting; `reply` returns the outcome. */
  def push(n: Long, frame: Payload, control: Boolean, by: Long): Unit = {
    val bound = bounds.retainedBytes + (if (control) ReserveBytes else 0)
    val about = Seq[Any](n, n - 1, by, frame.size, bound, bounds.laneTtlMs, part, order)
    val decide = Seq[Any]("FCALL", "udo_accept", 1, prefix, lane) ++ about
    inline = frame.size < InlineBytes
    if (inline) connection.send(decide :+ frame)
    else connection.send(Seq("MULTI"), Seq("RPUSH", s"${prefix}in", frame), decide, Seq("EXEC"))
  }

  /** Outcome of the last push. */
  def reply(): Pushed = {
    val told =
      if (inline) connection.checked(connection.reply())
      else {
        val replies = Seq.fill(4)(connection.reply()).map(connection.checked)
        if (replies.last == null) throw UdoException.byCode("server", "a transaction was discarded although it watches nothing")
        connection.checked(replies.last.asInstanceOf[Seq[Any]].map(connection.checked).last)
      }
    val parts = told.asInstanceOf[Seq[Any]]
    Pushed(text(parts.head), if (parts.size > 1) parts(1) else null)
  }

  /** The route of a MOVED answer to a frame that went by that version; None if it is not newer. */
  def newer(moved: Pushed, version: Long): Option[Route] = moved.value match {
    case table: Array[Byte] => Some(Route.parse(table)).filter(_.version > version)
    case _ => None
  }

  /** Use the newer route of a MOVED answer; false if it is not newer. A protocol error if it leads to other slots. */
  def follow(moved: Pushed): Boolean = newer(moved, route).exists { found =>
    if (found.slots != Seq(slot.name))
      throw UdoException.protocol(s"lane $lane was opened to ${slot.name}, but its events now go to ${found.slots.mkString(", ")}")
    route = found.version
    true
  }

  /** The version of the route by which the slot takes frames now. */
  def acceptsBy(): Long = Option(connection.call("HGET", s"${prefix}route", "v")).fold(0L)(text(_).toLong)

  /** Wait for answers, in buffers that the caller closes; empty after `waitMs`, or when the slot's status changed. */
  def collect(waitMs: Long): Seq[ArrowBuf] = {
    backoff.reset()
    while (!backoff.atCeiling) {
      val found = poll()
      if (found.nonEmpty) return found
      backoff.pause()
    }
    park(waitMs)
  }

  private def poll(): Seq[ArrowBuf] = {
    connection.send(Seq("LTRIM", out, collected, -1), Seq("LRANGE", out, 0, ReadFrames - 1))
    connection.checked(connection.reply())
    read()
  }

  /** Arm the doorbell, sleep on it, read: in one round trip, so that a woken reader already has the answers. */
  private def park(waitMs: Long): Seq[ArrowBuf] = {
    connection.send(
      Seq("LTRIM", out, collected, -1),
      Seq("FCALL", "udo_park_lane", 1, prefix, lane, bounds.laneTtlMs),
      Seq("BLPOP", bell, waitMs / 1000.0),
      Seq("LRANGE", out, 0, ReadFrames - 1))
    connection.checked(connection.reply())
    val parked = connection.checked(connection.reply()).asInstanceOf[Long]
    connection.checked(connection.reply(waitMs / 1000.0))
    val found = read()
    if (parked < 0) {
      found.foreach(_.close())
      throw gone("")
    }
    found
  }

  private def read(): Seq[ArrowBuf] = {
    val found = connection.replyBuffers()
    collected = found.size
    found
  }

  /** The schema message of that id, as registered on this slot; null if it is not. */
  def schema(id: Array[Byte]): Array[Byte] =
    connection.call("GET", s"${prefix}schema:".getBytes(UTF_8) ++ id).asInstanceOf[Array[Byte]]

  /** The reason why the slot does not serve, if it does not. */
  def status(): Option[JsonNode] = Option(connection.call("GET", s"${prefix}status")).map(json)

  /** The last answered frame of the slot. */
  def emitted(): Long = Option(connection.call("GET", s"${prefix}emitted")).fold(0L)(text(_).toLongOption.getOrElse(0L))

  /** The error of a lane that is gone; its text begins with `place`. */
  def gone(place: String): UdoException = UdoException.byCode(
    "lane_expired",
    s"${place}lane $lane was removed: it was idle for more than ${bounds.laneTtlMs / 1000} s, or its operator broke the slot's log, " +
      "which was begun anew (udo status says so). Unanswered frames have to be sent again")

  /** Remove everything that the lane has in the slot. */
  def close(): Unit = connection.call("FCALL", "udo_close", 1, prefix, lane)

  private def text(value: Any): String = value match {
    case b: Array[Byte] => new String(b, UTF_8)
    case other => String.valueOf(other)
  }

  private def json(value: Any): JsonNode =
    try LaneEnd.Json.readTree(text(value))
    catch {
      case e: com.fasterxml.jackson.core.JsonProcessingException =>
        throw UdoException.byCode("slot_broken", s"$prefix: expected JSON, got ${text(value).take(200)}: ${e.getOriginalMessage}")
    }
}

private[udo] object LaneEnd {
  val Json = new ObjectMapper
  // The values of udo_protocol/limits.py.
  private val InlineBytes = 8192
  private val ReserveBytes = 1L << 20
  private val AnswerBytes = 256L << 20
  private val ReadFrames = 16
  private val BackoffIncrementUs = 20L
}
