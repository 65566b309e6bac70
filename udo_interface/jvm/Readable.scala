package org.apache.spark.sql.udo

import scala.jdk.CollectionConverters._

import org.apache.arrow.vector._
import org.apache.arrow.vector.ipc.message.ArrowFieldNode
import org.apache.arrow.vector.types.{FloatingPointPrecision, TimeUnit}
import org.apache.arrow.vector.types.pojo.{ArrowType, Field, FieldType}

/** Copies columns that serve as others (`Answers.misfits`), but not as Spark reads them, to columns that it reads. */
private[udo] object Readable {
  /**
   * `have` as Spark reads it where `want` is expected: seconds and milliseconds as microseconds, unsigned integers as the next wider signed
   * ones, half precision as single, and the fields of structs in their expected order.
   */
  def field(have: Field, want: Field): Field = {
    val to = have.getType match {
      case t: ArrowType.Timestamp if t.getUnit.compareTo(TimeUnit.MICROSECOND) < 0 =>
        new ArrowType.Timestamp(TimeUnit.MICROSECOND, t.getTimezone)
      case t: ArrowType.Int if !t.getIsSigned && t.getBitWidth < 64 => new ArrowType.Int(2 * t.getBitWidth, true)
      case t: ArrowType.FloatingPoint if t.getPrecision == FloatingPointPrecision.HALF =>
        new ArrowType.FloatingPoint(FloatingPointPrecision.SINGLE)
      case other => other
    }
    val named = have.getChildren.asScala.map(f => f.getName -> f).toMap
    val inner = have.getChildren.asScala.zip(want.getChildren.asScala).map { case (mine, wanted) =>
      field(named.getOrElse(wanted.getName, mine), wanted) // the parts of lists and maps may have other names
    }
    new Field(have.getName, new FieldType(have.isNullable, to, have.getDictionary, have.getMetadata), inner.asJava)
  }

  /** Copy the values of `from` to `to`, whose field was made from that of `from`. ArithmeticException if one is out of bounds. */
  def copy(from: FieldVector, to: FieldVector): Unit = (from, to) match {
    case (f: UInt1Vector, t: SmallIntVector) => each(f, t)(row => t.set(row, f.get(row) & 0xff))
    case (f: UInt2Vector, t: IntVector) => each(f, t)(row => t.set(row, f.get(row).toInt))
    case (f: UInt4Vector, t: BigIntVector) => each(f, t)(row => t.set(row, Integer.toUnsignedLong(f.get(row))))
    case (f: Float2Vector, t: Float4Vector) => each(f, t)(row => t.set(row, f.getValueAsFloat(row)))
    case (f: TimeStampVector, t: TimeStampVector) if f.getField.getType != t.getField.getType =>
      val us = if (f.getField.getType.asInstanceOf[ArrowType.Timestamp].getUnit == TimeUnit.SECOND) 1000000L else 1000L
      each(f, t)(row => t.set(row, Math.multiplyExact(f.get(row), us)))
    case _ =>
      to.loadFieldBuffers(new ArrowFieldNode(from.getValueCount, from.getNullCount), from.getFieldBuffers)
      val named = from.getChildrenFromFields.asScala.map(v => v.getName -> v).toMap
      to.getChildrenFromFields.forEach(v => copy(named(v.getName), v))
  }

  private def each(from: BaseFixedWidthVector, to: BaseFixedWidthVector)(set: Int => Unit): Unit = {
    to.allocateNew(from.getValueCount)
    for (row <- 0 until from.getValueCount) if (from.isNull(row)) to.setNull(row) else set(row)
    to.setValueCount(from.getValueCount)
  }
}
