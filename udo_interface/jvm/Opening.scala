package org.apache.spark.sql.udo

import java.util.concurrent.TimeUnit

import scala.collection.mutable
import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode

import org.apache.arrow.memory.BufferAllocator

/**
 * A lane's place in one slot, and the address of the slot's server; it holds a password, so it stays in the task that asked. `name`: the
 * slot's in group maps.
 */
private[udo] final class SlotAddress(val place: Place, slot: JsonNode) {
  val prefix: String = slot.path("prefix").asText
  val name: String = Some(slot.path("name").asText("")).filter(_.nonEmpty).getOrElse(prefix)
  val route: Long = slot.path("route").asLong(0)
  val queue: String = slot.path("queue_socket").asText
  val runId: String = slot.path("run_id").asText
  val user: String = slot.path("user").asText
  val password: String = slot.path("password").asText
}

/** A node manager's answer to a request for a lane. `groupSlots`: for each key group the index of its slot; empty: there is one slot. */
private[udo] final class Opened(
    val lane: String,
    val slots: Seq[SlotAddress],
    val groupSlots: Array[Int],
    val bounds: Bounds,
    val window: Int,
    val stamp: Option[Stamp],
    val timed: Boolean,
    val policy: String)

private[udo] object Opened {
  /** Ask for a lane of this attempt, with that id. */
  def ask(call: Call, of: Attempt, lane: String): Opened = {
    val request = LaneEnd.Json.createObjectNode()
    request.put("deployment", call.deployment).put("lane", lane).put("session", of.session).put("epoch", of.epoch)
    request.put("pin_epoch", call.pinEpoch).put("input_schema", call.input.toArray)
    of.keyed.foreach { k =>
      request.put("run", k.run).put("call", k.keys.call).put("plan", k.keys.plan).put("key_groups", k.keys.groups)
      request.put("start_empty", k.keys.startEmpty)
    }
    val reply = NodeDoor.openLane(request, call.node, call.nodeWait, of.keyed.nonEmpty)
    val (node, offered) = (reply.path("node").asText, reply.path("slots").asScala.toSeq)
    val several = offered.size > 1 && of.keyed.nonEmpty
    val groups = if (several) reply.path("groups").path("slots").asScala.map(_.asInt).toArray else Array.emptyIntArray
    if (offered.isEmpty || (several && (groups.isEmpty || groups.max >= offered.size)))
      throw UdoException.protocol(
        s"node $node offers ${offered.size} slots for ${call.deployment}, and a map of ${groups.length} key groups: expected one slot, or " +
          "for a keyed operator several and for each key group one of them")
    // The defaults of udo_protocol/limits.py, for bounds that are not in the reply.
    def bound(name: String, default: Long) = Option(reply.path(name).asLong(0)).filter(_ > 0).getOrElse(default)
    val bounds = Bounds(
      windowFrames = bound("window_frames", 8).toInt,
      answerTimeoutMs = bound("answer_timeout_ms", 60000),
      frameBytes = bound("frame_bytes", 64L << 20),
      retainedBytes = bound("retained_bytes", 256L << 20),
      laneTtlMs = bound("lane_ttl_ms", 86400000),
      backoffCeilingUs = reply.path("backoff_ceiling_us").asLong(0))
    val slots = (if (several) offered else offered.take(1)).map { slot =>
      val at = Some(slot.path("node").asText("")).filter(_.nonEmpty).getOrElse(node)
      val place = Place(
        reply.path("operator").asText, reply.path("version").asText, at, slot.path("prefix").asText.stripSuffix(":"), call.deployment,
        of.partition, of.epoch)
      new SlotAddress(place, slot)
    }
    val window = if (call.window > 0) call.window else bounds.windowFrames
    new Opened(lane, slots, groups, bounds, window, of.stamp(reply.path("run").asLong(0)), reply.path("timed").asBoolean, reply.path("policy").asText(""))
  }
}

/** The lanes of an attempt, one per slot: one slot of a stateless operator; all slots of a keyed one, and those that groups move to. */
private[udo] final class Lanes private (call: Call, of: Attempt, val opened: Opened, allocator: BufferAllocator) {
  private val found = mutable.ArrayBuffer.empty[Lane]

  def size: Int = found.size
  def apply(slot: Int): Lane = found(slot)
  def all: Seq[Lane] = found.toSeq

  /** Open a lane, as the last one, in the slot of this name in a group map. The node offers it once the slot has received its groups. */
  def open(slot: String): Unit = {
    val backoff = Lanes.whileReplaced()
    val deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(Lanes.OpenWaitS)
    while (true) {
      Opened.ask(call, of, opened.lane).slots.find(_.name == slot).foreach { offered =>
        val connection =
          try connect(offered)
          catch {
            case e: UdoException if e.kind == "ServerLost" => throw UdoException.serverLost(s"${offered.place}: ${e.getMessage}")
          }
        use(offered, connection)
        return
      }
      if (System.nanoTime() > deadline)
        throw UdoException.byCode(
          "timeout",
          s"${found.head.place}: key groups are moving to $slot, and the node has not offered that slot for ${Lanes.OpenWaitS} s; look at: " +
            "udo status")
      backoff.pause()
    }
  }

  private def connect(slot: SlotAddress) = new Connection(slot.queue, slot.user, slot.password, slot.runId, call.tls, allocator)

  private def use(slot: SlotAddress, connection: Connection): Unit = {
    connection.place = Some(slot.place)
    val lane = new Lane(slot, opened, of, connection, call.inputId.toArray)
    found += lane
    lane.open(call.input.toArray)
  }

  private def openAll(): Unit = {
    val connections = mutable.Queue.empty[Connection]
    try {
      opened.slots.foreach(slot => connections += connect(slot))
      opened.slots.foreach(slot => use(slot, connections.dequeue()))
    } catch {
      case e: Throwable =>
        Lanes.each((connections.toSeq ++ found).map(open => () => open.close()))
        throw e
    }
  }

  /** Close each lane, also if another one fails; whatever happened, the answers and credits are freed at once. */
  def close(): Unit = {
    val failed = Lanes.each(found.toSeq.map(lane => () => lane.close()))
    found.clear()
    failed.headOption.foreach(throw _)
  }
}

private[udo] object Lanes {
  // A killed queue server is replaced within a second or so: ask again after 20, 40 ... 500 ms.
  private val ReplacedIncrementUs = 20000L
  private val ReplacedCeilingUs = 500000L
  private val OpenWaitS = 30L

  /** Take each step even if another one fails; return the failures. */
  def each(steps: Seq[() => Unit]): Seq[Exception] = steps.flatMap { step =>
    try { step(); None }
    catch { case e: Exception => Some(e) }
  }

  private def whileReplaced() = new LinearBackoff(ReplacedIncrementUs, ReplacedCeilingUs)

  /** Ask for a lane, connect and register it. While a lost queue server is being replaced it asks again: nothing was sent so far. */
  def open(call: Call, of: Attempt, allocator: BufferAllocator): Lanes = {
    val backoff = whileReplaced()
    val deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(OpenWaitS)
    while (true) {
      try {
        val lanes = new Lanes(call, of, Opened.ask(call, of, Attempt.lane(call, of)), allocator)
        lanes.openAll()
        return lanes
      } catch {
        case e: UdoException if e.kind == "ServerLost" =>
          if (System.nanoTime() > deadline)
            throw UdoException.serverLost(s"deployment ${call.deployment}: ${e.getMessage}; it was not replaced within $OpenWaitS s")
      }
      backoff.pause()
    }
    throw new IllegalStateException
  }
}
