package org.apache.spark.sql.udo

import org.apache.arrow.memory.ArrowBuf
import org.apache.arrow.vector.{BaseVariableWidthVector, FieldVector, VarBinaryVector, VarCharVector}

import org.apache.spark.sql.types.{DataType, Decimal}
import org.apache.spark.sql.util.ArrowUtils
import org.apache.spark.sql.vectorized.{ArrowColumnVector, ColumnVector, ColumnarArray, ColumnarMap}
import org.apache.spark.unsafe.Platform
import org.apache.spark.unsafe.types.UTF8String

/**
 * A column of numbers, times, text or bytes, read where it lies. Arrow checks its buffers at every value, which costs several times as
 * much as the value; here `bind` checks all values of a batch at once.
 */
private[udo] final class PlainColumn private (of: DataType, vector: FieldVector, width: Int) extends ColumnVector(of) {
  private var valid, data, offsets = 0L
  private var nulls = 0

  /** Read what the vector holds now. IllegalArgumentException if its buffers do not hold its values. */
  def bind(): Unit = {
    val rows = vector.getValueCount
    nulls = vector.getNullCount
    valid = address(vector.getValidityBuffer, (rows + 7L) / 8)
    vector match {
      case v: BaseVariableWidthVector =>
        offsets = address(v.getOffsetBuffer, if (rows == 0) 0 else 4L * (rows + 1))
        data = address(v.getDataBuffer, 0)
        val size = v.getDataBuffer.capacity
        var row = 0
        var at = if (rows == 0) 0 else Platform.getInt(null, offsets)
        if (at < 0) refuse(s"text begins at byte $at")
        while (row < rows) {
          val end = Platform.getInt(null, offsets + 4L * (row + 1))
          if (end < at || end > size) refuse(s"text in row $row ends at byte $end of $size, and begins at $at")
          at = end
          row += 1
        }
      case v => data = address(v.getDataBuffer, if (width == 0) (rows + 7L) / 8 else rows.toLong * width)
    }
  }

  private def address(buffer: ArrowBuf, bytes: Long): Long = {
    if (buffer.capacity < bytes) refuse(s"a buffer of ${buffer.capacity} bytes, expected at least $bytes")
    buffer.memoryAddress
  }

  private def refuse(why: String) = throw new IllegalArgumentException(s"column ${vector.getName}: $why")

  private def bit(at: Long, row: Int): Boolean = (Platform.getByte(null, at + (row >> 3)) >> (row & 7) & 1) == 1

  override def hasNull: Boolean = nulls > 0
  override def numNulls: Int = nulls
  override def isNullAt(row: Int): Boolean = nulls > 0 && !bit(valid, row)
  override def getBoolean(row: Int): Boolean = bit(data, row)
  override def getByte(row: Int): Byte = Platform.getByte(null, data + row)
  override def getShort(row: Int): Short = Platform.getShort(null, data + 2L * row)
  override def getInt(row: Int): Int = Platform.getInt(null, data + 4L * row)
  override def getLong(row: Int): Long = Platform.getLong(null, data + 8L * row)
  override def getFloat(row: Int): Float = Platform.getFloat(null, data + 4L * row)
  override def getDouble(row: Int): Double = Platform.getDouble(null, data + 8L * row)

  /** Whether all its values have the same number of bytes. */
  def fixed: Boolean = width >= 0

  /** Write `size` values from row `from` on into every `step`th word from `at` on, each in its low bytes. */
  def words(from: Int, size: Int, into: Array[Long], at: Int, step: Int): Unit = {
    var to = at
    var row = from
    val end = from + size
    width match {
      case 0 => while (row < end) { into(to) = if (bit(data, row)) 1 else 0; row += 1; to += step }
      case 1 => while (row < end) { into(to) = getByte(row) & 0xffL; row += 1; to += step }
      case 2 => while (row < end) { into(to) = getShort(row) & 0xffffL; row += 1; to += step }
      case 4 => while (row < end) { into(to) = getInt(row) & 0xffffffffL; row += 1; to += step }
      case 8 => while (row < end) { into(to) = getLong(row); row += 1; to += step }
    }
  }

  override def getUTF8String(row: Int): UTF8String = {
    val start = Platform.getInt(null, offsets + 4L * row)
    UTF8String.fromAddress(null, data + start, Platform.getInt(null, offsets + 4L * (row + 1)) - start)
  }

  override def getBinary(row: Int): Array[Byte] = {
    val start = Platform.getInt(null, offsets + 4L * row)
    val found = new Array[Byte](Platform.getInt(null, offsets + 4L * (row + 1)) - start)
    Platform.copyMemory(null, data + start, found, Platform.BYTE_ARRAY_OFFSET, found.length)
    found
  }

  override def getDecimal(row: Int, precision: Int, scale: Int): Decimal = none
  override def getArray(row: Int): ColumnarArray = none
  override def getMap(row: Int): ColumnarMap = none
  override def getChild(i: Int): ColumnVector = none
  override def close(): Unit = ()

  private def none = throw new UnsupportedOperationException(s"a column of $of has no such values")
}

private[udo] object PlainColumn {
  /** The column as Spark reads it. */
  def of(vector: FieldVector): ColumnVector = vector match {
    case v @ (_: VarCharVector | _: VarBinaryVector) => new PlainColumn(ArrowUtils.fromArrowField(v.getField), v, -1)
    case v if Plain.width(v) >= 0 => new PlainColumn(ArrowUtils.fromArrowField(v.getField), v, Plain.width(v))
    case v => new ArrowColumnVector(v)
  }
}
