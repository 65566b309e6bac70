package org.apache.spark.sql.udo

import java.net.{SocketTimeoutException, StandardProtocolFamily, UnixDomainSocketAddress}
import java.nio.ByteBuffer
import java.nio.channels.{SelectionKey, Selector, SocketChannel}

import org.apache.spark.TaskContext

/** A connected Unix socket. Each wait is bounded by a deadline of System.nanoTime, and ends when Spark kills the task. */
private[udo] final class UnixStream(path: String) extends AutoCloseable {
  private val channel = SocketChannel.open(StandardProtocolFamily.UNIX)
  private val selector =
    try {
      channel.connect(UnixDomainSocketAddress.of(path))
      channel.configureBlocking(false)
      Selector.open()
    } catch {
      case e: Throwable => channel.close(); throw e
    }
  private val key = channel.register(selector, SelectionKey.OP_READ)
  private val task = TaskContext.get()

  /** Read into `target`, which has room; return the bytes read, -1: the other side has closed. SocketTimeoutException at the deadline. */
  def read(target: ByteBuffer, deadline: Long): Int = {
    var n = channel.read(target)
    while (n == 0) {
      await(SelectionKey.OP_READ, deadline)
      n = channel.read(target)
    }
    n
  }

  /** Write all pieces. */
  def write(pieces: Array[ByteBuffer], deadline: Long): Unit = {
    var at = 0
    while (at < pieces.length) {
      if (!pieces(at).hasRemaining) at += 1
      else if (channel.write(pieces, at, math.min(pieces.length - at, UnixStream.Gathered)) == 0) await(SelectionKey.OP_WRITE, deadline)
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
      selector.select(math.min(left, UnixStream.LookMs))
      ready = selector.selectedKeys().remove(key)
    }
  }

  override def close(): Unit =
    try selector.close()
    finally channel.close()
}

private[udo] object UnixStream {
  /** How often a wait checks whether the task was killed. */
  val LookMs = 1000L
  /** The most buffers in one write. */
  val Gathered = 64
}
