package org.apache.spark.sql.udo

import java.io.{ByteArrayOutputStream, IOException}
import java.net.{SocketTimeoutException, URI}
import java.nio.ByteBuffer
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Path, Paths}
import java.util.concurrent.TimeUnit

import com.fasterxml.jackson.core.JsonProcessingException
import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode

/**
 * Asks the node manager of this host for a lane: one HTTP request with OpenLane's messages as JSON, on the Unix socket beside the one
 * for gRPC (docs/protocol.md, "OpenLane by HTTP"). The socket is found as in udo_interface/discovery.py.
 */
private[udo] object NodeDoor {
  private val Call = "/udo.v1.NodeManager/OpenLane"
  private val SocketName = "lanes.sock"
  private val OpenWaitMs = 30000L
  private val MarginMs = 10000L
  private val ReplyBytes = 64 << 20
  // The values of udo_interface/lane/opening.py.
  private val AwayIncrementUs = 50000L
  private val AwayCeilingUs = 1000000L
  private val WaitS = 60.0
  private val KeptByStore = " (a keyed operator's state moves with it only if the call has store=)"

  /** The reply to `request`. A node manager that is away is asked again for a while: it may just be restarting. */
  def openLane(request: ObjectNode, node: Option[String], nodeWait: Option[String], keyed: Boolean): JsonNode = {
    val socket = Paths.get(address(node)).toAbsolutePath
    val waitS = waitSeconds(nodeWait)
    val deadline = System.nanoTime() + (waitS * TimeUnit.SECONDS.toNanos(1)).toLong
    val backoff = new LinearBackoff(AwayIncrementUs, AwayCeilingUs)
    request.put("wait_ms", OpenWaitMs)
    while (true) {
      try return ask(socket, request)
      catch {
        case e: UdoException if e.kind == "NodeAway" || e.kind == "SlotsAway" =>
          if (System.nanoTime() >= deadline) throw gaveUp(e, waitS, keyed)
      }
      backoff.pause()
    }
    throw new IllegalStateException
  }

  private def gaveUp(e: UdoException, waitS: Double, keyed: Boolean): UdoException = {
    val waited = s"Waited ${trimmed(waitS)} s for it"
    if (e.kind == "SlotsAway")
      new UdoException(e.kind, s"${e.getMessage}. $waited (spark.udo.nodeWaitS); Spark tries the task again (spark.task.maxFailures)")
    else
      new UdoException(
        e.kind,
        s"${e.getMessage}. $waited on host ${ProgressDeadline.host} (spark.udo.nodeWaitS). If it is lost for good, let Spark run " +
          s"the task on another host: spark.excludeOnFailure.enabled=true${if (keyed) KeptByStore else ""}; see docs/executors.md")
  }

  private def trimmed(seconds: Double): String = if (seconds == math.rint(seconds)) seconds.toLong.toString else seconds.toString

  private def ask(socket: Path, request: ObjectNode): JsonNode = {
    val deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(OpenWaitMs + MarginMs)
    val body = LaneEnd.Json.writeValueAsBytes(request)
    val head = s"POST $Call HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\n" +
      "Connection: close\r\n\r\n"
    val stream =
      try SocketStream.unix(socket.resolveSibling(SocketName).toString, deadline)
      catch {
        case _: IOException if !Files.exists(socket.getParent) =>
          throw UdoException.byCode(
            "unavailable",
            s"no node manager on $socket of host ${ProgressDeadline.host}: there is no directory ${socket.getParent}, so none has ever " +
              "run there. Is the path correct for this host (spark.udo.node, UDO_NODE)? If it is, start a node manager there: udo up")
        case _: SocketTimeoutException => throw away(socket, "it accepts no connection")
        case e: IOException => throw away(socket, String.valueOf(e.getMessage))
      }
    try {
      stream.write(Array(ByteBuffer.wrap(head.getBytes(UTF_8)), ByteBuffer.wrap(body)), deadline)
      parsed(socket, whole(stream, deadline))
    } catch {
      case _: SocketTimeoutException =>
        throw UdoException.byCode("timeout", s"the node manager on $socket did not answer in time: waited ${OpenWaitMs + MarginMs} ms")
      case e: JsonProcessingException =>
        throw UdoException.protocol(s"the node manager on $socket answered with no JSON: ${e.getOriginalMessage}")
      case e: IOException =>
        Option(org.apache.spark.TaskContext.get()).foreach(_.killTaskIfInterrupted())
        throw away(socket, s"it closed the connection: ${e.getMessage}")
    } finally stream.close()
  }

  private def away(socket: Path, why: String) = UdoException.byCode(
    "node_away",
    s"no node manager answers on $socket of host ${ProgressDeadline.host}: $why, for $SocketName beside it. Start one there: udo up (or " +
      "set spark.udo.node / UDO_NODE); one of an earlier release has no such socket, and path=\"python\" goes without it")

  /** All bytes until the other side closes. */
  private def whole(stream: ByteStream, deadline: Long): Array[Byte] = {
    val found = new ByteArrayOutputStream
    val part = ByteBuffer.allocate(1 << 16)
    var n = stream.read(part, deadline)
    while (n >= 0) {
      found.write(part.array, 0, part.position())
      part.clear()
      if (found.size > ReplyBytes) throw UdoException.protocol(s"the node manager answers with more than $ReplyBytes bytes")
      n = stream.read(part, deadline)
    }
    found.toByteArray
  }

  private def parsed(socket: Path, reply: Array[Byte]): JsonNode = {
    val end = reply.indexOfSlice("\r\n\r\n".getBytes(UTF_8))
    val status = new String(reply, 0, math.max(end, 0), UTF_8).takeWhile(_ != '\r').split(' ')
    if (end < 0 || status.length < 2) throw new IOException("its answer is cut short")
    val found = LaneEnd.Json.readTree(reply, end + 4, reply.length - end - 4)
    if (status(1) == "200") found
    else if (found.hasNonNull("code")) throw UdoException.byCode(found.path("code").asText, found.path("message").asText)
    else throw UdoException.byCode("error", s"the node manager on $socket failed: ${status.drop(1).mkString(" ")}")
  }

  private def user: String = Option(System.getenv("HOME")).filter(_.nonEmpty).getOrElse(System.getProperty("user.home"))

  /** The home of `udo up`: UDO_HOME, else ~/.udo. */
  def home: Path = Option(System.getenv("UDO_HOME")).filter(_.nonEmpty).map(Paths.get(_)).getOrElse(Paths.get(user, ".udo"))

  /** A path that may begin with ~. */
  def expanded(path: String): Path = if (path == "~" || path.startsWith("~/")) Paths.get(user, path.drop(2)) else Paths.get(path)

  /** The path of this host's node manager. */
  private def address(setting: Option[String]): String = {
    val usual = Seq(home.resolve("node").resolve("node.sock"), Paths.get("/run/udo/node.sock"))
    val given = setting.orElse(Option(System.getenv("UDO_NODE")).filter(_.nonEmpty)).map(plain)
    // A node manager that is being restarted has no socket for a moment, but its directory stays.
    val absent = usual.map(path => s"$path (absent)").mkString(", ")
    given
      .orElse(usual.find(Files.exists(_)).map(_.toString))
      .orElse(usual.find(p => Files.isDirectory(p.getParent)).map(_.toString))
      .getOrElse(
        throw UdoException.byCode(
          "unavailable",
          s"no node manager found on this machine; looked at: spark.udo.node (not set), UDO_NODE (not set), " +
            s"$absent. Start one with `udo up` (or `udo node`), or set spark.udo.node to the path " +
            "of its socket; see docs/executors.md"))
  }

  private def plain(address: String): String =
    if (address.startsWith("unix:")) address.stripPrefix("unix://").stripPrefix("unix:")
    else if (!address.contains("://")) address
    else
      throw UdoException.byCode(
        "usage",
        s"the JVM path reaches node managers of its own host only, got ${URI.create(address)}: call the operator with path=\"python\", " +
          "or set spark.udo.path=python")

  private def waitSeconds(setting: Option[String]): Double =
    setting.orElse(Option(System.getenv("UDO_NODE_WAIT_S")).filter(_.nonEmpty)).fold(WaitS) { text =>
      text.toDoubleOption.filter(s => s >= 0 && !s.isInfinite).getOrElse(
        throw UdoException.byCode("usage", s"spark.udo.nodeWaitS: expected a number of seconds >= 0, got '$text'"))
    }
}
