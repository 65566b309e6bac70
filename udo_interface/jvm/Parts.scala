package org.apache.spark.sql.udo

import java.nio.ByteBuffer
import java.nio.channels.FileChannel
import java.nio.file.{Files, Path, StandardOpenOption}

import scala.collection.immutable.ArraySeq
import scala.collection.mutable

import org.apache.arrow.memory.{ArrowBuf, BufferAllocator}

import org.apache.spark.SparkEnv
import org.apache.spark.sql.catalyst.expressions.UnsafeRow

/** Events `at` .. `at + size` of `events`, for one slot; `rows`: their row numbers in their batch. */
private[udo] final case class Piece(slot: Int, rows: IndexedSeq[Int], events: Events, at: Int) {
  def size: Int = rows.size
  def drop(n: Int): Piece = copy(rows = rows.drop(n), at = at + n)
  def take(n: Int): Piece = copy(rows = rows.take(n))
}

/** A frame for one slot: `rows` of its item, or END for the key groups `ends`. `piece`: its events, until the slot has accepted it. */
private[udo] final class Part(val item: Item, val slot: Int, var rows: IndexedSeq[Int], var piece: Option[Piece], val ends: Option[Seq[Int]]) {
  var answer: Frame = _
}

/** A batch, or the ENDs; `sent`: whether all its parts are pushed. */
private[udo] final class Item {
  val parts = mutable.ArrayBuffer.empty[Part]
  /** For each row, the columns that are carried past the operator. */
  val kept = mutable.ArrayBuffer.empty[UnsafeRow]
  var sent = false
  var answered = 0

  def complete: Boolean = sent && answered == parts.size

  /** A slot whose answer is missing; None if there is none. */
  def awaited: Option[Int] = parts.find(_.answer == null).map(_.slot)

  /** Whether the rows of its parts follow one another, as those of a batch that was cut into frames. */
  def inOrder: Boolean = parts.zip(parts.drop(1)).forall { case (a, b) => a.rows.isEmpty || b.rows.isEmpty || a.rows.last < b.rows.head }

  def close(): Unit = parts.foreach(part => if (part.answer != null) part.answer.bytes.close())
}

/**
 * Holds the answers of a keyed attempt at a micro-batch until the attempt is complete, so that no limit downstream cuts it short
 * (udo_interface/spark/held.py). Memory holds no more than a task's window of frames may take; the rest waits in a temporary file of Spark's.
 */
private[udo] final class Held(allocator: BufferAllocator) {
  import Held._

  private val items = mutable.Queue.empty[Item]
  private var size = 0L
  private var file: Option[(Path, FileChannel)] = None
  private val away = mutable.Map.empty[Part, Long]
  private val keptAway = mutable.Map.empty[Item, (Long, Int)] // position in the file, and number of rows

  def add(item: Item): Unit = {
    items += item
    size += item.parts.map(_.answer.bytes.writerIndex).sum + item.kept.map(_.getSizeInBytes.toLong).sum
    if (size > InMemoryBytes) {
      item.parts.foreach(spill)
      if (item.kept.nonEmpty) spillKept(item)
    }
  }

  def isEmpty: Boolean = items.isEmpty

  /** The next item, in the order of arrival; the caller closes it. */
  def next(): Item = {
    items.head.parts.foreach(part => away.get(part).foreach(fetch(part, _)))
    keptAway.remove(items.head).foreach { case (at, count) => fetchKept(items.head, at, count) }
    items.dequeue()
  }

  private def spill(part: Part): Unit = {
    val bytes = part.answer.bytes
    val channel = opened()
    away(part) = channel.position()
    val rows = part.rows match { // a range, of a batch that was not split, takes no room
      case some: ArraySeq[Int] => some
      case _ => Nil
    }
    val head = ByteBuffer.allocate(8 + 4 * rows.size).putInt(rows.size).putInt(bytes.writerIndex.toInt)
    rows.foreach(head.putInt)
    Seq(head.flip(), bytes.nioBuffer(0, bytes.writerIndex.toInt)).foreach(b => while (b.hasRemaining) channel.write(b))
    if (rows.nonEmpty) part.rows = ArraySeq.empty
    bytes.close()
  }

  private def fetch(part: Part, at: Long): Unit = {
    val channel = opened()
    channel.position(at)
    val head = filled(channel, ByteBuffer.allocate(8))
    val (count, length) = (head.getInt, head.getInt)
    if (count > 0) {
      val rows = filled(channel, ByteBuffer.allocate(4 * count))
      part.rows = ArraySeq.fill(count)(rows.getInt)
    }
    val bytes: ArrowBuf = allocator.buffer(length.toLong)
    try filled(channel, bytes.nioBuffer(0, length))
    catch {
      case e: Throwable => bytes.close(); throw e
    }
    part.answer = part.answer.copy(bytes = bytes.writerIndex(length.toLong))
    away.remove(part)
  }

  private def spillKept(item: Item): Unit = {
    val channel = opened()
    keptAway(item) = (channel.position(), item.kept.size)
    val bytes = ByteBuffer.allocate(item.kept.map(8 + _.getSizeInBytes).sum)
    item.kept.foreach(row => bytes.putInt(row.numFields).putInt(row.getSizeInBytes).put(row.getBytes))
    bytes.flip()
    while (bytes.hasRemaining) channel.write(bytes)
    item.kept.clear()
  }

  private def fetchKept(item: Item, at: Long, count: Int): Unit = {
    val channel = opened()
    channel.position(at)
    (0 until count).foreach { _ =>
      val head = filled(channel, ByteBuffer.allocate(8))
      val row = new UnsafeRow(head.getInt)
      val bytes = filled(channel, ByteBuffer.allocate(head.getInt)).array
      row.pointTo(bytes, bytes.length)
      item.kept += row
    }
  }

  private def filled(channel: FileChannel, to: ByteBuffer): ByteBuffer = {
    while (to.hasRemaining) if (channel.read(to) < 0) throw new java.io.EOFException(s"the answers held in ${file.get._1} end early")
    to.flip()
  }

  private def opened(): FileChannel = {
    if (file.isEmpty) {
      val path = SparkEnv.get.blockManager.diskBlockManager.createTempLocalBlock()._2.toPath
      file = Some((path, FileChannel.open(path, StandardOpenOption.CREATE, StandardOpenOption.READ, StandardOpenOption.WRITE)))
    }
    file.get._2
  }

  def close(): Unit = {
    items.foreach(_.parts.foreach(part => if (!away.contains(part)) part.answer.bytes.close()))
    items.clear()
    file.foreach { case (path, channel) =>
      channel.close()
      Files.deleteIfExists(path)
    }
    file = None
  }
}

private[udo] object Held {
  private val InMemoryBytes = 64L << 20
}
