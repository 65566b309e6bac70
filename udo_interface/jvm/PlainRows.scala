package org.apache.spark.sql.udo

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.unsafe.Platform

/** Rows of columns of fixed width, made a block at a time and column by column, the reverse of ColumnWriter. */
private[udo] final class PlainRows(columns: Array[PlainColumn], inUse: InUse) {
  private val nullWords = UnsafeRow.calculateBitSetWidthInBytes(columns.length) / 8
  private val words = nullWords + columns.length
  private val block = new Array[Long](ColumnWriter.Rows * words)
  private val row = new UnsafeRow(columns.length)

  /** The first `number` rows of what the columns hold now; each is valid until the next one. */
  def rows(number: Int): Iterator[InternalRow] = new Iterator[InternalRow] {
    private var at = 0

    override def hasNext: Boolean = at < number

    override def next(): InternalRow = {
      val place = at % ColumnWriter.Rows
      if (place == 0) inUse(fill(at, math.min(ColumnWriter.Rows, number - at)))
      row.pointTo(block, Platform.LONG_ARRAY_OFFSET + 8L * place * words, 8 * words)
      at += 1
      row
    }
  }

  private def fill(from: Int, size: Int): Unit = {
    java.util.Arrays.fill(block, 0L)
    var field = 0
    while (field < columns.length) {
      columns(field).words(from, size, block, nullWords + field, words)
      if (columns(field).hasNull) {
        var i = 0
        while (i < size) {
          if (columns(field).isNullAt(from + i)) {
            block(i * words + nullWords + field) = 0
            block(i * words + (field >> 6)) |= 1L << field
          }
          i += 1
        }
      }
      field += 1
    }
  }
}
