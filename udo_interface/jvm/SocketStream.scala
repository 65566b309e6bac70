package org.apache.spark.sql.udo

import java.io.IOException
import java.net.{InetAddress, InetSocketAddress, SocketException, SocketTimeoutException}
import java.net.{StandardProtocolFamily, StandardSocketOptions, UnixDomainSocketAddress}
import java.nio.ByteBuffer
import java.nio.channels.{SelectionKey, Selector, SocketChannel}
import java.nio.file.{Files, Path}
import java.util.concurrent.TimeUnit

import org.apache.spark.TaskContext

/** A connected stream. Each wait is bounded by a deadline of System.nanoTime, and ends when Spark kills the task. */
private[udo] trait ByteStream extends AutoCloseable {
  /** Read into `target`, which has room; return the bytes read, -1: the other side has closed. SocketTimeoutException at the deadline. */
  def read(target: ByteBuffer, deadline: Long): Int

  /** Write all pieces. */
  def write(pieces: Array[ByteBuffer], deadline: Long): Unit
}

/** A non-blocking socket; `connected`: whether it is connected already. */
private[udo] final class SocketStream private (channel: SocketChannel, connected: Boolean, deadline: Long) extends ByteStream {
  private val task = TaskContext.get()
  private val selector =
    try {
      channel.configureBlocking(false)
      Selector.open()
    } catch {
      case e: Throwable => channel.close(); throw e
    }
  private val key = channel.register(selector, 0)

  if (!connected)
    try while (!channel.finishConnect()) await(SelectionKey.OP_CONNECT, deadline)
    catch {
      case e: Throwable => close(); throw e
    }

  override def read(target: ByteBuffer, deadline: Long): Int = {
    var n = channel.read(target)
    while (n == 0) {
      await(SelectionKey.OP_READ, deadline)
      n = channel.read(target)
    }
    n
  }

  override def write(pieces: Array[ByteBuffer], deadline: Long): Unit = {
    var at = 0
    while (at < pieces.length) {
      if (!pieces(at).hasRemaining) at += 1
      else if (channel.write(pieces, at, math.min(pieces.length - at, SocketStream.Gathered)) == 0) await(SelectionKey.OP_WRITE, deadline)
    }
  }

  private def await(what: Int, deadline: Long): Unit = {
    key.interestOps(what)
    var ready = false
    while (!ready) {
      if (task != null) task.killTaskIfInterrupted()
      if (Thread.interrupted()) throw new InterruptedException
      val left = (deadline - System.nanoTime()) / 1000000
      if (left <= 0) throw new SocketTimeoutException
      selector.select(math.min(left, SocketStream.LookMs))
      ready = selector.selectedKeys().remove(key)
    }
  }

  override def close(): Unit =
    try selector.close()
    finally channel.close()
}

private[udo] object SocketStream {
  /** The interval at which a wait checks whether the task was killed. */
  private val LookMs = 1000L
  /** The most buffers in one write. */
  private val Gathered = 64
  /** The size of a Unix socket's send buffer: see transport.py in udo_protocol/queue. */
  private val WholeFrameBytes = 256 << 10
  /** A host that takes longer to accept a connection is down (udo_protocol/queue/tls.py). */
  private val ConnectS = 10L
  private val FullIncrementUs = 1000L
  private val FullCeilingUs = 50000L

  /** The Unix socket at this path. While its server's queue of connections is full, it tries again. */
  def unix(path: String, deadline: Long): SocketStream = {
    val backoff = new LinearBackoff(FullIncrementUs, FullCeilingUs)
    while (true) {
      val channel = SocketChannel.open(StandardProtocolFamily.UNIX)
      val connected =
        try {
          channel.setOption[Integer](StandardSocketOptions.SO_SNDBUF, WholeFrameBytes)
          channel.configureBlocking(false)
          channel.connect(UnixDomainSocketAddress.of(path))
        } catch {
          // Java has no exception class of its own for a full queue: it throws the same one as for a socket that is not there.
          case e: SocketException if e.getClass == classOf[SocketException] && Files.exists(Path.of(path)) => false
          case e: Throwable => channel.close(); throw e
        }
      if (connected) return new SocketStream(channel, connected, deadline)
      channel.close() // unlike for a TCP socket, the system does not go on connecting
      if (System.nanoTime() > deadline) throw new SocketTimeoutException
      backoff.pause()
    }
    throw new IllegalStateException
  }

  /** A port of a host, at the first of its addresses that accepts. */
  def tcp(host: String, port: Int): SocketStream = {
    var refused: IOException = null
    InetAddress.getAllByName(host).foreach { address =>
      try return tcp(new InetSocketAddress(address, port))
      catch {
        case e: IOException => if (refused == null) refused = e else refused.addSuppressed(e)
      }
    }
    throw refused
  }

  private def tcp(address: InetSocketAddress): SocketStream = {
    val channel = SocketChannel.open()
    val connected =
      try {
        // Each write is sent at once: no further one follows soon.
        channel.setOption[java.lang.Boolean](StandardSocketOptions.TCP_NODELAY, true)
        channel.configureBlocking(false)
        channel.connect(address)
      } catch {
        case e: Throwable => channel.close(); throw e
      }
    new SocketStream(channel, connected, System.nanoTime() + TimeUnit.SECONDS.toNanos(ConnectS))
  }
}
