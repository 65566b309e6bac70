package org.apache.spark.sql.udo

import java.io.{ByteArrayOutputStream, EOFException, IOException}
import java.net.SocketTimeoutException
import java.nio.ByteBuffer
import java.nio.charset.StandardCharsets.UTF_8
import java.security.cert.CertificateException
import java.util.concurrent.TimeUnit
import javax.net.ssl.SSLException

import scala.collection.mutable.ArrayBuffer

import org.apache.arrow.memory.{ArrowBuf, BufferAllocator}

/** The server's refusal of a command, in the place of a reply. */
private[udo] final case class Refusal(text: String)

/** An argument in pieces, which are sent without a copy. */
private[udo] final case class Payload(pieces: Seq[ByteBuffer]) {
  val size: Long = pieces.map(_.remaining.toLong).sum
}

/**
 * A connection to a queue server (RESP), as udo_protocol/queue/connection.py: it never reconnects and never retries. `path`: of a Unix
 * socket, or rediss://host:port, for which `tls` names the folder of certificates if it is not in its usual place. Replies are Long,
 * String (a status), Array[Byte], Seq, null or Refusal. One thread at a time.
 */
private[udo] final class Connection(
    path: String, user: String, password: String, runId: String, tls: Option[String], allocator: BufferAllocator)
    extends AutoCloseable {
  import Connection._

  /** The most bytes that one value may have. */
  var bulkBytes: Long = 512L << 20
  /** The place that the connection leads to: the error of its loss begins with it. */
  var place = Option.empty[Place]
  private val input = ByteBuffer.allocateDirect(1 << 16)
  input.limit(0)
  private val stream =
    try if (path.contains("://")) Connection.tls(path, tls, deadline(WaitS)) else SocketStream.unix(path, deadline(WaitS))
    catch {
      case _: SocketTimeoutException => throw gone(s"it did not answer within ${math.round(WaitS)} s")
      case e: SSLException => throw refused(e)
      case e: IOException =>
        throw UdoException.serverLost(s"no server answers on $path: ${e.getMessage}; is the node manager running? (udo status)")
    }
  greet()

  private def greet(): Unit =
    try {
      send(Seq("AUTH", user, password), Seq("INFO", "server"))
      val told = Seq(reply(), reply())
      told.foreach {
        case Refusal(why) if why.startsWith("LOADING") =>
          throw UdoException.serverLost(s"the server on $path is back, but still reading its file")
        case Refusal(why) =>
          throw UdoException.byCode("unauthorized", s"authentication failed for user $user at the server on $path: $why")
        case _ =>
      }
      val info = new String(told(1).asInstanceOf[Array[Byte]], UTF_8)
      val found = info.linesIterator.find(_.startsWith("run_id:")).map(_.drop("run_id:".length).trim).getOrElse("")
      if (found != runId)
        throw UdoException.serverLost(
          s"the server on $path was restarted: expected run $runId, found $found; what it held is gone")
    } catch {
      case e: Throwable => close(); throw e
    }

  /** One command and its reply; an error if the server refuses it. */
  def call(arguments: Any*): Any = {
    send(arguments)
    checked(reply())
  }

  /** Write commands (of String, Int, Long, Array[Byte] or Payload) without waiting for their replies. */
  def send(commands: Seq[Any]*): Unit = {
    val pieces = new ArrayBuffer[ByteBuffer]
    val small = new ByteArrayOutputStream(256)
    def text(s: String): Unit = small.write(s.getBytes(UTF_8))
    commands.foreach { arguments =>
      text(s"*${arguments.size}\r\n")
      arguments.foreach {
        case payload: Payload =>
          text(s"$$${payload.size}\r\n")
          pieces += ByteBuffer.wrap(small.toByteArray)
          small.reset()
          pieces ++= payload.pieces.map(_.duplicate())
          text("\r\n")
        case other =>
          val bytes = other match {
            case b: Array[Byte] => b
            case o => o.toString.getBytes(UTF_8)
          }
          text(s"$$${bytes.length}\r\n")
          small.write(bytes)
          text("\r\n")
      }
    }
    pieces += ByteBuffer.wrap(small.toByteArray)
    guarded(WaitS)(stream.write(pieces.toArray, deadline(WaitS)))
  }

  /** The next reply. `waitS`: beyond the usual wait, for a command that itself waits. */
  def reply(waitS: Double = 0): Any = guarded(WaitS + waitS)(value(deadline(WaitS + waitS), buffers = false))

  /** The next reply, a list of values, in buffers that the caller closes. */
  def replyBuffers(): Seq[ArrowBuf] =
    checked(guarded(WaitS)(value(deadline(WaitS), buffers = true))).asInstanceOf[Seq[ArrowBuf]]

  /** Return the reply; throw if it is a refusal. */
  def checked(reply: Any): Any = reply match {
    case Refusal(why) => throw UdoException.byCode("server", why)
    case other => other
  }

  private def deadline(seconds: Double): Long = System.nanoTime() + (seconds * TimeUnit.SECONDS.toNanos(1)).toLong

  private def guarded[T](seconds: Double)(step: => T): T = {
    try step
    catch {
      case _: SocketTimeoutException => close(); throw gone(s"it did not answer within ${math.round(seconds)} s")
      case _: EOFException => close(); throw gone("it closed the connection")
      case e: SSLException => close(); throw refused(e)
      case e: IOException =>
        close()
        Option(org.apache.spark.TaskContext.get()).foreach(_.killTaskIfInterrupted()) // an interrupted thread finds its socket closed
        throw gone(String.valueOf(e.getMessage))
    }
  }

  private def gone(why: String) = UdoException.serverLost(
    s"${place.fold("")(at => s"$at: ")}the server on $path is gone: $why; the unanswered frames have to be retried")

  private def refused(e: SSLException): UdoException = {
    val causes = Iterator.iterate[Throwable](e)(_.getCause).takeWhile(_ != null).flatMap(c => Option(c.getMessage)).toSeq
    val why = Seq(causes.headOption, causes.lastOption).flatten.distinct.mkString(": ")
    val told =
      if (String.valueOf(e.getMessage).contains("alert:")) s"the server on $path refuses this side's certificate: $why"
      else if (e.getCause.isInstanceOf[CertificateException])
        s"the server on $path shows a certificate that is not accepted: $why; expected a valid one for this address that ca.crt in " +
          s"${Certificates.found(tls).getOrElse("the folder of certificates")} vouches for"
      else s"no TLS with the server on $path: $why; is it the port for TLS?"
    UdoException.byCode("untrusted", told)
  }

  private def value(until: Long, buffers: Boolean): Any = {
    val told = line(until)
    val rest = told.drop(1)
    told.headOption match {
      case Some('$') => if (rest.startsWith("-")) null else if (buffers) buffer(rest.toLong, until) else bytes(rest.toLong, until)
      case Some('*') => if (rest.startsWith("-")) null else values(rest.toInt, until, buffers)
      case Some(':') => rest.toLong
      case Some('+') => rest
      case Some('-') => Refusal(rest)
      case _ => close(); throw UdoException.byCode("server", s"the peer on $path does not speak RESP: ${told.take(40)}")
    }
  }

  private def values(count: Int, until: Long, buffers: Boolean): Seq[Any] = {
    val found = new ArrayBuffer[Any](count)
    try while (found.size < count) found += value(until, buffers)
    catch {
      case e: Throwable => found.foreach { case b: ArrowBuf => b.close(); case _ => }; throw e
    }
    found.toSeq
  }

  private def line(until: Long): String = {
    var at = input.position()
    while (true) {
      while (at + 1 < input.limit()) {
        if (input.get(at) == '\r' && input.get(at + 1) == '\n') {
          val text = new Array[Byte](at - input.position())
          input.get(text)
          input.position(at + 2)
          return new String(text, UTF_8)
        }
        at += 1
      }
      val seen = at - input.position()
      fill(until)
      at = input.position() + seen
    }
    throw new IllegalStateException
  }

  private def bytes(size: Long, until: Long): Array[Byte] = {
    val found = new Array[Byte](bounded(size))
    into(ByteBuffer.wrap(found), until)
    found
  }

  private def buffer(size: Long, until: Long): ArrowBuf = {
    val found = allocator.buffer(bounded(size).toLong)
    try into(found.nioBuffer(0, size.toInt), until)
    catch {
      case e: Throwable => found.close(); throw e
    }
    found.writerIndex(size)
    found
  }

  private def bounded(size: Long): Int = {
    if (size > bulkBytes) {
      close() // the beginning of the next reply is unknown
      throw UdoException.protocol(s"a value of $size bytes; the bound is $bulkBytes")
    }
    size.toInt
  }

  private def into(target: ByteBuffer, until: Long): Unit = {
    val here = input.duplicate()
    here.limit(input.position() + math.min(input.remaining, target.remaining))
    input.position(here.limit())
    target.put(here)
    while (target.hasRemaining) if (stream.read(target, until) < 0) throw new EOFException
    while (input.remaining < 2) fill(until)
    input.position(input.position() + 2)
  }

  private def fill(until: Long): Unit = {
    input.compact()
    val came =
      try {
        if (!input.hasRemaining) throw UdoException.byCode("server", s"a line of more than ${input.capacity} bytes came from $path")
        stream.read(input, until)
      } finally input.flip()
    if (came < 0) throw new EOFException
  }

  override def close(): Unit = stream.close()
}

private[udo] object Connection {
  /** The wait for a reply; by then the node manager has replaced a server that hangs (udo_protocol/limits.py, SERVER_WAIT_S). */
  val WaitS = 75.0
  // Not by java.net.URI, which does not accept a host with an underscore in its name.
  private val Address = """rediss://(\[[^\]/@]+\]|[^:/@\[\]]+):(\d{1,5})""".r
  private val MostPort = 65535

  private def tls(address: String, setting: Option[String], deadline: Long): TlsStream = address match {
    case Address(host, port) if port.toInt > 0 && port.toInt <= MostPort =>
      val engine = Certificates.engine(host.stripPrefix("[").stripSuffix("]"), port.toInt, address, setting)
      new TlsStream(SocketStream.tcp(engine.getPeerHost, port.toInt), engine, deadline)
    case _ =>
      throw UdoException.byCode("usage", s"expected the path of a Unix socket or rediss://host:port, got '$address'")
  }
}
