package org.apache.spark.sql.udo

import java.io.{EOFException, IOException}
import java.nio.ByteBuffer
import javax.net.ssl.{SSLEngine, SSLException}
import javax.net.ssl.SSLEngineResult.{HandshakeStatus, Status}

/** TLS over a socket, which it closes. The constructor does the handshake; SSLException if one side refuses the other. */
private[udo] final class TlsStream(socket: SocketStream, engine: SSLEngine, deadline: Long) extends ByteStream {
  // Both are kept ready for reading: the bytes between position and limit have been received and not yet used.
  private var received = TlsStream.empty(TlsStream.Records * engine.getSession.getPacketBufferSize)
  private var decrypted = TlsStream.empty(engine.getSession.getApplicationBufferSize)
  private var encrypted = ByteBuffer.allocate(TlsStream.Records * engine.getSession.getPacketBufferSize)

  try {
    engine.beginHandshake()
    while (engine.getHandshakeStatus != HandshakeStatus.NOT_HANDSHAKING) {
      goOn(deadline)
      if (TlsStream.Awaits.contains(engine.getHandshakeStatus) && !decrypt(deadline)) throw new EOFException("it closed the connection")
    }
    Certificates.checkName(engine)
  } catch {
    case e: Throwable => close(); throw e
  }

  override def read(target: ByteBuffer, deadline: Long): Int = {
    while (!decrypted.hasRemaining) {
      if (!decrypt(deadline)) return -1
      goOn(deadline) // the other side may change its keys at any time
    }
    val some = decrypted.duplicate()
    some.limit(some.position() + math.min(some.remaining, target.remaining))
    decrypted.position(some.limit())
    val size = some.remaining
    target.put(some)
    size
  }

  override def write(pieces: Array[ByteBuffer], deadline: Long): Unit =
    try
      while (pieces.exists(_.hasRemaining)) {
        encrypted.clear()
        do encrypt(pieces) while (pieces.exists(_.hasRemaining) && encrypted.remaining >= engine.getSession.getPacketBufferSize)
        flush(deadline)
      }
    catch {
      case e: SSLException => throw e
      case e: IOException =>
        // With TLS 1.3 a refusal of this side's certificate comes after the handshake, and then the connection is closed.
        try decrypt(deadline)
        catch {
          case refused: SSLException => throw refused
          case _: IOException =>
        }
        throw e
    }

  /** Do this side's next steps of the handshake: compute and send. */
  private def goOn(deadline: Long): Unit = {
    var left = true
    while (left) engine.getHandshakeStatus match {
      case HandshakeStatus.NEED_TASK =>
        var task = engine.getDelegatedTask
        while (task != null) {
          task.run()
          task = engine.getDelegatedTask
        }
      case HandshakeStatus.NEED_WRAP =>
        encrypted.clear()
        encrypt(Array(ByteBuffer.allocate(0)))
        flush(deadline)
      case _ => left = false
    }
  }

  /** Encrypt the next record of these bytes. */
  private def encrypt(pieces: Array[ByteBuffer]): Unit = engine.wrap(pieces, encrypted).getStatus match {
    case Status.OK =>
    case Status.BUFFER_OVERFLOW => // the session's records have become longer
      val larger = ByteBuffer.allocate(encrypted.position() + engine.getSession.getPacketBufferSize)
      encrypted.flip()
      encrypted = larger.put(encrypted)
      encrypt(pieces)
    case _ => throw new EOFException("it closed the connection")
  }

  private def flush(deadline: Long): Unit = {
    encrypted.flip()
    socket.write(Array(encrypted), deadline)
  }

  /** Decrypt the next record, after the rest of earlier ones; false: the other side has closed. */
  private def decrypt(deadline: Long): Boolean = {
    while (true) {
      decrypted.compact()
      val status =
        try engine.unwrap(received, decrypted).getStatus
        finally decrypted.flip()
      status match {
        case Status.OK => return true
        case Status.CLOSED => return false
        case Status.BUFFER_OVERFLOW =>
          decrypted = TlsStream.larger(decrypted, engine.getSession.getApplicationBufferSize)
        case Status.BUFFER_UNDERFLOW =>
          if (received.remaining == received.capacity) received = TlsStream.larger(received, engine.getSession.getPacketBufferSize)
          received.compact()
          val came =
            try socket.read(received, deadline)
            finally received.flip()
          if (came < 0) return false
      }
    }
    throw new IllegalStateException
  }

  override def close(): Unit = socket.close()
}

private[udo] object TlsStream {
  /** The number of records that are read and written at once. */
  private val Records = 4
  private val Awaits = Set(HandshakeStatus.NEED_UNWRAP, HandshakeStatus.NEED_UNWRAP_AGAIN)

  private def empty(size: Int): ByteBuffer = {
    val made = ByteBuffer.allocate(size)
    made.limit(0)
    made
  }

  /** Copy the bytes into a buffer with room for `more` bytes after them. */
  private def larger(bytes: ByteBuffer, more: Int): ByteBuffer = {
    val made = ByteBuffer.allocate(bytes.remaining + more).put(bytes)
    made.flip()
    made
  }
}
