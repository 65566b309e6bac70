package org.apache.spark.sql.udo

import java.security.SecureRandom
import java.util.{Base64, HexFormat}

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.TaskContext

/**
 * One call of an operator in a query, as udo_interface/jvm_path.py describes it: plain values, and nothing that is secret, since it is
 * part of Spark's plan. `input` and `output` are Arrow IPC schemas, `columns` the input's names.
 */
private[udo] final case class Call(
    deployment: String,
    app: String,
    uid: String,
    pinEpoch: Boolean,
    window: Int,
    node: Option[String],
    nodeWait: Option[String],
    columns: Seq[String],
    input: Seq[Byte],
    inputId: Seq[Byte],
    output: Seq[Byte],
    outputId: Seq[Byte])

private[udo] object Call {
  def parse(text: String): Call = {
    val told = LaneEnd.Json.readTree(text)
    def string(name: String) = told.path(name).asText("")
    def option(name: String) = Option(told.get(name)).filterNot(_.isNull).map(_.asText)
    def bytes(name: String) = Base64.getDecoder.decode(string(name)).toSeq
    val columns = Seq.tabulate(told.path("columns").size)(told.path("columns").get(_).asText)
    Call(
      string("deployment"), string("app"), string("uid"), told.path("pin_epoch").asBoolean, told.path("window").asInt(0), option("node"),
      option("node_wait"), columns, bytes("input"), bytes("input_id"), bytes("output"), bytes("output_id"))
  }
}

/** What the task is in its query: see Task.request in udo_interface/task.py. */
private[udo] final case class Attempt(session: String, epoch: Long, partition: Int, attempt: Long)

private[udo] object Attempt {
  private val random = new SecureRandom

  def of(call: Call, context: TaskContext): Attempt = {
    def local(name: String) = Option(context.getLocalProperty(name))
    val (session, epoch) = local("sql.streaming.queryId") match {
      case Some(query) => (query, local("streaming.sql.batchId").fold(0L)(_.toLong))
      case None => // a batch job is one epoch of a session of its own
        val job = local("spark.sql.execution.id").getOrElse(s"stage${context.stageId()}")
        (s"${call.app}/$job", 0L)
    }
    Attempt(session, epoch, context.partitionId(), context.taskAttemptId())
  }

  /** A lane id unique to this attempt, readable in `udo status` and in logs. */
  def lane(call: Call, of: Attempt): String = {
    val own = new Array[Byte](4)
    random.nextBytes(own)
    val parts = Seq(of.session.takeRight(12), if (call.uid.isEmpty) "0" else call.uid, of.epoch, of.partition, of.attempt)
    parts.map(_.toString.replace(' ', '_').replace(':', '_')).mkString(".") + "." + HexFormat.of().formatHex(own)
  }
}

/** A node manager's answer: where the lane leads, and how its server is reached. Only the task that asked has it. */
private[udo] final class Opened(val place: Place, val bounds: Bounds, val window: Int, val lane: String, reply: JsonNode) {
  private val slot = reply.path("slots").path(0)
  val prefix: String = slot.path("prefix").asText
  val route: Long = slot.path("route").asLong(0)
  val queue: String = slot.path("queue_socket").asText
  val runId: String = slot.path("run_id").asText
  val user: String = slot.path("user").asText
  val password: String = slot.path("password").asText
}

private[udo] object Opened {
  /** Ask for a lane of this attempt. */
  def ask(call: Call, of: Attempt): Opened = {
    val lane = Attempt.lane(call, of)
    val request = LaneEnd.Json.createObjectNode()
    request.put("deployment", call.deployment).put("lane", lane).put("session", of.session).put("epoch", of.epoch)
    request.put("pin_epoch", call.pinEpoch).put("input_schema", call.input.toArray)
    val reply = NodeDoor.openLane(request, call.node, call.nodeWait)
    if (reply.path("slots").size < 1)
      throw UdoException.protocol(s"node ${reply.path("node").asText} offers no slot for ${call.deployment}")
    // As udo_protocol/limits.py where the reply says nothing.
    def bound(name: String, default: Long) = Option(reply.path(name).asLong(0)).filter(_ > 0).getOrElse(default)
    val bounds = Bounds(
      windowFrames = bound("window_frames", 8).toInt,
      answerTimeoutMs = bound("answer_timeout_ms", 60000),
      frameBytes = bound("frame_bytes", 64L << 20),
      retainedBytes = bound("retained_bytes", 256L << 20),
      laneTtlMs = bound("lane_ttl_ms", 86400000),
      backoffCeilingUs = reply.path("backoff_ceiling_us").asLong(0))
    val place = Place(
      reply.path("operator").asText, reply.path("version").asText, reply.path("node").asText,
      reply.path("slots").path(0).path("prefix").asText.stripSuffix(":"), call.deployment, of.partition, of.epoch)
    val window = if (call.window > 0) call.window else bounds.windowFrames
    val opened = new Opened(place, bounds, window, lane, reply)
    if (opened.queue.contains("://"))
      throw UdoException.byCode(
        "usage", s"$place: the slot is on another host, which the JVM path does not reach: call the operator with path=\"python\"")
    opened
  }
}
