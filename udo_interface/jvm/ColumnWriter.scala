package org.apache.spark.sql.udo

import java.nio.ByteOrder

import org.apache.arrow.vector._

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{BoundReference, UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.execution.arrow.ArrowWriter
import org.apache.spark.sql.util.ArrowUtils
import org.apache.spark.unsafe.Platform

/**
 * Writes rows to the columns of `root`, the first ones of the rows. Rows are gathered in blocks, and a block is written column by column:
 * Spark's own writers, which write value by value, cost several times as much. Columns of types that have no plain form in a row are
 * left to them.
 */
private[udo] final class ColumnWriter(root: VectorSchemaRoot) {
  import ColumnWriter._

  private val vectors = root.getFieldVectors.toArray(Array.empty[FieldVector])
  private val columns = vectors.zipWithIndex.map {
    case (v: BaseFixedWidthVector, i) if Plain.width(v) >= 0 => new FixedColumn(v, i, Plain.width(v))
    case (v: VarCharVector, i) => new TextColumn(v, i)
    case (v: VarBinaryVector, i) => new TextColumn(v, i)
    case (v, i) => new OtherColumn(v, i)
  }
  private val text = columns.collect { case c: TextColumn => c }
  private val others = columns.collect { case c: OtherColumn => c }
  // A block: for each row the words that tell which fields are null, then one word for each field.
  private val nullWords = ColumnWriter.nullWords(vectors.length)
  private val words = nullWords + vectors.length
  private val block = new Array[Long](Rows * words)
  private val someNull = new Array[Long](nullWords)
  private lazy val project =
    UnsafeProjection.create(vectors.toSeq.zipWithIndex.map { case (v, i) =>
      BoundReference(i, ArrowUtils.fromArrowField(v.getField), nullable = true)
    })
  private var gathered = 0
  private var before = 0

  /** The rows written since `reset`. */
  def rows: Int = before + gathered

  def write(row: InternalRow): Unit = row match {
    case plain: UnsafeRow => gather(plain)
    case other => gather(project(other))
  }

  // No tuples and no ranges: they would cost as much as the values.
  private def gather(row: UnsafeRow): Unit = {
    val from = row.getBaseObject
    val base = row.getBaseOffset
    val values = base + UnsafeRow.calculateBitSetWidthInBytes(row.numFields)
    val start = gathered * words
    var i = 0
    while (i < nullWords) {
      val nulls = Platform.getLong(from, base + 8L * i)
      block(start + i) = nulls
      someNull(i) |= nulls
      i += 1
    }
    val fields = start + nullWords
    i = 0
    while (i < vectors.length) {
      block(fields + i) = Platform.getLong(from, values + 8L * i)
      i += 1
    }
    i = 0
    while (i < text.length) {
      text(i).append(from, base, block(fields + text(i).field))
      i += 1
    }
    i = 0
    while (i < others.length) {
      others(i).write(row)
      i += 1
    }
    gathered += 1
    if (gathered == Rows) flush()
  }

  /** Write `n` rows of such a block, from its row `at` on, the bytes of whose texts are in `staged`, by field. */
  def write(from: Array[Long], at: Int, n: Int, staged: Array[Gathered.Staged]): Unit = {
    require(others.isEmpty, "a column has no plain form")
    for (column <- text) {
      var size = 0L
      var row = at
      while (row < at + n) {
        size += from(row * words + nullWords + column.field)
        row += 1
      }
      val texts = staged(column.field)
      column.append(texts.bytes, Platform.BYTE_ARRAY_OFFSET + texts.at.toLong, size)
      texts.at += size.toInt
    }
    var done = 0
    while (done < n) {
      val some = math.min(Rows - gathered, n - done)
      System.arraycopy(from, (at + done) * words, block, gathered * words, some * words)
      var row = gathered
      while (row < gathered + some) {
        var i = 0
        while (i < nullWords) {
          someNull(i) |= block(row * words + i)
          i += 1
        }
        row += 1
      }
      gathered += some
      done += some
      if (gathered == Rows) flush()
    }
  }

  /** Bring the block into the columns. Only the last one has fewer rows: each begins at a whole byte of the bits. */
  private def flush(): Unit = {
    var i = 0
    while (i < columns.length) {
      columns(i).take()
      i += 1
    }
    before += gathered
    gathered = 0
    java.util.Arrays.fill(someNull, 0L)
  }

  /** Bytes that have been written. */
  def size: Long = {
    var bytes = 0L
    var i = 0
    while (i < columns.length) {
      bytes += columns(i).size(rows)
      i += 1
    }
    bytes
  }

  /** End the writing: no more rows until `reset`. */
  def finish(): Unit = {
    flush()
    columns.foreach(_.finish(before))
    root.setRowCount(before)
  }

  /** Forget all rows. */
  def reset(): Unit = {
    gathered = 0
    before = 0
    java.util.Arrays.fill(someNull, 0L)
    columns.foreach(_.reset())
  }

  /** A column, the field of that number in a row. */
  private sealed abstract class Column(val field: Int) {
    /** Take the gathered rows, which follow `before` others. */
    def take(): Unit
    def size(rows: Int): Long
    def finish(rows: Int): Unit
    def reset(): Unit

    protected final def value(row: Int): Long = block(row * words + nullWords + field)

    /** A bit for each row: whether its value is there. */
    protected final def valid: Long = {
      val all = if (gathered == Rows) -1L else (1L << gathered) - 1
      val word = field >> 6
      if ((someNull(word) >>> field & 1) == 0) return all
      var nulls = 0L
      var row = 0
      while (row < gathered) {
        nulls |= (block(row * words + word) >>> field & 1) << row
        row += 1
      }
      all & ~nulls
    }

    protected final def putBits(address: Long, bits: Long): Unit = {
      val to = address + before / 8
      var i = 0
      while (i * 8 < gathered) {
        Platform.putByte(null, to + i, (bits >>> (8 * i)).toByte)
        i += 1
      }
    }
  }

  /** Values of `width` bytes; 0: a bit each. */
  private final class FixedColumn(vector: BaseFixedWidthVector, field: Int, width: Int) extends Column(field) {
    override def take(): Unit = {
      while (vector.getValueCapacity < before + gathered) vector.reAlloc()
      putBits(vector.getValidityBufferAddress, valid)
      val data = vector.getDataBufferAddress
      var at = data + before.toLong * width
      var row = 0
      width match {
        case 0 => putBits(data, flags)
        case 1 => while (row < gathered) { Platform.putByte(null, at, value(row).toByte); row += 1; at += 1 }
        case 2 => while (row < gathered) { Platform.putShort(null, at, value(row).toShort); row += 1; at += 2 }
        case 4 => while (row < gathered) { Platform.putInt(null, at, value(row).toInt); row += 1; at += 4 }
        case 8 => while (row < gathered) { Platform.putLong(null, at, value(row)); row += 1; at += 8 }
      }
    }

    private def flags: Long = {
      var found = 0L
      var row = 0
      while (row < gathered) {
        found |= (value(row) & 1) << row
        row += 1
      }
      found
    }

    override def size(rows: Int): Long = vector.getBufferSizeFor(rows).toLong
    override def finish(rows: Int): Unit = vector.setValueCount(rows)
    override def reset(): Unit = ()
  }

  /** Text or bytes, which a row holds behind its fields: place and length are in the field. */
  private final class TextColumn(vector: BaseVariableWidthVector, field: Int) extends Column(field) {
    private var end = 0L
    private var taken = 0L // the end of the rows before the block

    def append(from: AnyRef, base: Long, place: Long): Unit = {
      val size = place.toInt
      if (size > 0) {
        if (vector.getDataBuffer.capacity < end + size) vector.reallocDataBuffer(end + size)
        Platform.copyMemory(from, base + (place >>> 32), null, vector.getDataBuffer.memoryAddress + end, size.toLong)
        end += size
      }
    }

    override def take(): Unit = {
      while (vector.getValueCapacity < before + gathered) vector.reallocValidityAndOffsetBuffers()
      putBits(vector.getValidityBufferAddress, valid)
      var at = vector.getOffsetBufferAddress + 4L * before
      if (before == 0) Platform.putInt(null, at, 0)
      var row = 0
      while (row < gathered) {
        taken += value(row).toInt
        at += 4
        Platform.putInt(null, at, taken.toInt)
        row += 1
      }
    }

    override def size(rows: Int): Long = (rows + 7L) / 8 + 4L * (rows + 1) + end

    override def finish(rows: Int): Unit = {
      vector.setLastSet(rows - 1)
      vector.setValueCount(rows)
    }

    override def reset(): Unit = {
      end = 0
      taken = 0
    }
  }

  private final class OtherColumn(vector: FieldVector, field: Int) extends Column(field) {
    private val writer = ArrowWriter.createFieldWriter(vector)
    def write(row: InternalRow): Unit = writer.write(row, field)
    override def take(): Unit = ()

    override def size(rows: Int): Long = {
      vector.setValueCount(rows)
      vector.getBufferSizeFor(rows).toLong
    }

    override def finish(rows: Int): Unit = writer.finish()
    override def reset(): Unit = writer.reset()
  }

  vectors.foreach(_.allocateNew())
}

private[udo] object ColumnWriter {
  /** The rows of a block: as many as a word has bits. */
  val Rows = 64

  /** The words of a row of a block that tell which of its fields are null. */
  def nullWords(fields: Int): Int = (fields + 63) / 64
}

/** Types whose values have the same bytes in a row of Spark's and in an Arrow column. */
private[udo] object Plain {
  // Where the highest byte comes first, a narrow value is not in the low bytes of its field.
  private val lowFirst = ByteOrder.nativeOrder == ByteOrder.LITTLE_ENDIAN

  /** Bytes of a value; 0: a bit, -1: the bytes differ. */
  def width(vector: FieldVector): Int = vector match {
    case _ if !lowFirst => -1
    case _: BitVector => 0
    case _: TinyIntVector => 1
    case _: SmallIntVector => 2
    case _: IntVector | _: Float4Vector | _: DateDayVector | _: IntervalYearVector => 4
    case _: BigIntVector | _: Float8Vector | _: TimeStampMicroVector | _: TimeStampMicroTZVector => 8
    case _ => -1
  }
}
