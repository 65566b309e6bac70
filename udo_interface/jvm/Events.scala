package org.apache.spark.sql.udo

import org.apache.arrow.memory.BufferAllocator
import org.apache.arrow.vector.{VectorSchemaRoot, VectorUnloader}
import org.apache.arrow.vector.types.pojo.Schema

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.execution.arrow.ArrowWriter

/** Rows gathered into one frame's events, in buffers that are used again for the frame after the next one. */
private[udo] final class Events(schema: Schema, allocator: BufferAllocator) {
  private val root = VectorSchemaRoot.create(schema, allocator)
  private val writer = ArrowWriter.create(root)

  /** Take up to `rows` rows, and no more than about `bytes` bytes; how many. What was in here before is gone. */
  def fill(source: Iterator[InternalRow], rows: Int, bytes: Long): Int = {
    writer.reset()
    var n = 0
    while (n < rows && source.hasNext) {
      writer.write(source.next())
      n += 1
      // Asked for every row, as mapInArrow does, the size costs as much as all the rest.
      if (n % Events.RowsPerLook == 0 && size(n) >= bytes) {
        writer.finish()
        return n
      }
    }
    writer.finish()
    n
  }

  private def size(n: Int): Long = {
    var bytes = 0L
    root.getFieldVectors.forEach { v =>
      v.setValueCount(n)
      bytes += v.getBufferSizeFor(n)
    }
    bytes
  }

  /** Hand over `rows` rows from `at` on as one Arrow message; what it lies in is released behind `use`. */
  def message[T](at: Int, rows: Int)(use: Payload => T): T = {
    val part = if (at == 0 && rows == root.getRowCount) root else root.slice(at, rows)
    try {
      val batch = new VectorUnloader(part).getRecordBatch
      try use(Body.encode(batch))
      finally batch.close()
    } finally if (part ne root) part.close()
  }

  def rows: Int = root.getRowCount

  def close(): Unit = root.close()
}

private[udo] object Events {
  val RowsPerLook = 64
}
