package org.apache.spark.sql.udo

import org.apache.arrow.memory.BufferAllocator
import org.apache.arrow.vector.{IntVector, VectorSchemaRoot, VectorUnloader}
import org.apache.arrow.vector.types.pojo.Schema

import org.apache.spark.sql.catalyst.InternalRow

/** Rows gathered into the events of one slot, in buffers that are reused for the batch after the next one. */
private[udo] final class Events(schema: Schema, allocator: BufferAllocator) {
  private val root = VectorSchemaRoot.create(schema, allocator)
  private val writer = new ColumnWriter(root)

  /** Forget all rows. */
  def reset(): Unit = writer.reset()

  def write(row: InternalRow): Unit = writer.write(row)

  /** Write the next `n` of these rows. */
  def write(rows: Gathered, n: Int): Unit = rows.take(n, writer)

  /** End the writing: no more rows until `reset`. */
  def finish(): Unit = writer.finish()

  /** Bytes that have been written. */
  def size: Long = writer.size

  /** The rows that a message may have: those written, once that has ended. */
  def rows: Int = root.getRowCount

  /** The key group of a row, which is its last column. */
  def group(row: Int): Int = root.getFieldVectors.get(root.getFieldVectors.size - 1).asInstanceOf[IntVector].get(row)

  /** A copy of these rows only, which the caller closes. */
  def taken(at: Seq[Int]): Events = {
    val some = new Events(schema, allocator)
    try {
      root.getFieldVectors.forEach { from =>
        val to = some.root.getVector(from.getName)
        to.allocateNew()
        at.zipWithIndex.foreach { case (row, i) => to.copyFromSafe(row, i, from) }
        to.setValueCount(at.size)
      }
      some.root.setRowCount(at.size)
      some
    } catch {
      case e: Throwable => some.close(); throw e
    }
  }

  /** Hand over `rows` rows from `at` on as one Arrow message, whose buffers are released after `use`. */
  def message[T](at: Int, rows: Int)(use: Payload => T): T = {
    val part = if (at == 0 && rows == root.getRowCount) root else root.slice(at, rows)
    try {
      val batch = new VectorUnloader(part).getRecordBatch
      try use(Body.encode(batch))
      finally batch.close()
    } finally if (part ne root) part.close()
  }

  def close(): Unit = root.close()
}
