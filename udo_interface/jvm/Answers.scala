package org.apache.spark.sql.udo

import scala.jdk.CollectionConverters._

import org.apache.arrow.memory.BufferAllocator
import org.apache.arrow.vector.{VectorLoader, VectorSchemaRoot}
import org.apache.arrow.vector.types.FloatingPointPrecision
import org.apache.arrow.vector.types.pojo.{ArrowType, Field, Schema}

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{BoundReference, Cast, Expression, JoinedRow, UnsafeProjection}
import org.apache.spark.sql.types.{ArrayType, DataType, MapType, StructField, StructType, TimestampNTZType, TimestampType}
import org.apache.spark.sql.util.ArrowUtils
import org.apache.spark.sql.vectorized.ColumnarBatch

/**
 * Reads the events of answers in one schema as rows of the columns that the query was planned with, selected and widened by name,
 * followed by columns of the types `kept`.
 */
private[udo] final class Answers(
    schema: Schema,
    expected: Schema,
    planned: Seq[DataType],
    kept: Seq[DataType],
    allocator: BufferAllocator,
    inUse: InUse) {
  private val root = VectorSchemaRoot.create(schema, allocator)
  private val loader = new VectorLoader(root)
  private val fields = expected.getFields.asScala.toSeq.map(f => Readable.field(schema.findField(f.getName), f))
  // Copies of the columns, if Spark does not read them as they come.
  private val copied =
    if (fields.forall(f => f == schema.findField(f.getName))) None
    else Some(VectorSchemaRoot.create(new Schema(fields.asJava), allocator))
  private val vectors = fields.map(f => PlainColumn.of(copied.getOrElse(root).getVector(f.getName)))
  private val batch = new ColumnarBatch(vectors.toArray)
  private val answered = fields.zip(planned).zipWithIndex.map[Expression] { case ((field, to), i) =>
    val from = ArrowUtils.fromArrowField(field)
    // Among types with the same bytes, only an instant and a wall clock differ: read the column as the planned type.
    if (Answers.zoneless(from) == Answers.zoneless(to)) BoundReference(i, to, nullable = true)
    else Cast(BoundReference(i, from, nullable = true), to, Some("UTC"))
  }
  private val project = UnsafeProjection.create(
    answered ++ kept.zipWithIndex.map { case (t, i) => BoundReference(fields.size + i, t, nullable = true) })
  private val joined = new JoinedRow
  private val plain = vectors.collect { case v: PlainColumn if v.fixed => v }.toArray
  private val plainRows =
    if (kept.isEmpty && plain.length == answered.size && answered.forall(_.isInstanceOf[BoundReference]))
      Some(new PlainRows(plain, inUse))
    else None

  /** The events of `answer`, each with the next one of `beside`; they are valid until the next call. */
  def rows(answer: Frame, beside: Iterator[InternalRow]): Iterator[InternalRow] = {
    Body.load(answer, root, loader)
    if (root.getRowCount > 0)
      try copied.foreach(_.getFieldVectors.forEach(v => Readable.copy(root.getVector(v.getName), v)))
      catch {
        case e: ArithmeticException => throw Body.improper(answer, s"a value of it is out of bounds: ${e.getMessage}")
      }
    try vectors.foreach { case v: PlainColumn => v.bind(); case _ => }
    catch {
      case e: IllegalArgumentException => throw Body.improper(answer, e.getMessage)
    }
    plainRows.fold(projected(answer, beside))(_.rows(root.getRowCount))
  }

  private def projected(answer: Frame, beside: Iterator[InternalRow]): Iterator[InternalRow] = {
    batch.setNumRows(root.getRowCount)
    batch.rowIterator().asScala.map { row =>
      inUse {
        try project(if (kept.isEmpty) row else joined(row, beside.next()))
        catch {
          case e: RuntimeException => throw Body.improper(answer, s"a row of it is none: $e")
        }
      }
    }
  }

  /** Release the buffers of the last answer. */
  def clear(): Unit = (copied.toSeq :+ root).foreach(_.clear())

  def close(): Unit = (copied.toSeq :+ root).foreach(_.close())
}

private[udo] object Answers {
  /** The reasons why columns of `have` cannot serve as `want`, if any, as from `misfits` in udo_protocol/formats/schema.py. */
  def misfits(have: Schema, want: Schema): Seq[String] = {
    val there = have.getFields.asScala.map(f => f.getName -> f).toMap
    want.getFields.asScala.toSeq.flatMap { f =>
      there.get(f.getName) match {
        case None =>
          val names = have.getFields.asScala.map(_.getName).mkString(", ")
          Some(s"column '${f.getName}' (${f.getType}) is missing; there are: ${if (names.isEmpty) "no columns" else names}")
        case Some(found) if !widens(found, f) => Some(s"column '${f.getName}': expected ${f.getType}, got ${found.getType}")
        case _ => None
      }
    }
  }

  private def widens(have: Field, want: Field): Boolean = (have.getType, want.getType) match {
    case (_: ArrowType.Null, _) => true
    case (_: ArrowType.Struct, _: ArrowType.Struct) =>
      val (mine, theirs) = (have.getChildren.asScala.map(f => f.getName -> f).toMap, want.getChildren.asScala)
      mine.keySet == theirs.map(_.getName).toSet && theirs.forall(f => widens(mine(f.getName), f))
    case (_: ArrowType.List, _: ArrowType.List) => widens(have.getChildren.get(0), want.getChildren.get(0))
    case (_: ArrowType.Map, _: ArrowType.Map) =>
      val (mine, theirs) = (have.getChildren.get(0).getChildren.asScala, want.getChildren.get(0).getChildren.asScala)
      mine.zip(theirs).forall { case (a, b) => widens(a, b) }
    case (a, b) => a == b || widens(a, b)
  }

  private def widens(have: ArrowType, want: ArrowType): Boolean = (have, want) match {
    case (a: ArrowType.Int, b: ArrowType.Int) => b.getIsSigned && a.getBitWidth < b.getBitWidth
    case (a: ArrowType.Int, b: ArrowType.FloatingPoint) => a.getIsSigned && a.getBitWidth < bits(b)
    case (a: ArrowType.FloatingPoint, b: ArrowType.FloatingPoint) => bits(a) <= bits(b)
    case (a: ArrowType.Timestamp, b: ArrowType.Timestamp) => a.getTimezone == b.getTimezone && a.getUnit.compareTo(b.getUnit) <= 0
    case (a: ArrowType.Decimal, b: ArrowType.Decimal) =>
      a.getScale <= b.getScale && a.getPrecision - a.getScale <= b.getPrecision - b.getScale
    case (_: ArrowType.Utf8 | _: ArrowType.LargeUtf8, _: ArrowType.Utf8 | _: ArrowType.LargeUtf8) => true
    case (_: ArrowType.Binary, _: ArrowType.LargeBinary) => true
    case _ => false
  }

  /** The bits of the significand; 0 for half precision, which Spark does not have. */
  private def bits(t: ArrowType.FloatingPoint): Int = t.getPrecision match {
    case FloatingPointPrecision.SINGLE => 24
    case FloatingPointPrecision.DOUBLE => 53
    case _ => 0
  }

  private def zoneless(t: DataType): DataType = t match {
    case TimestampNTZType => TimestampType
    case ArrayType(e, _) => ArrayType(zoneless(e))
    case MapType(k, v, _) => MapType(zoneless(k), zoneless(v))
    case StructType(fields) => StructType(fields.map(f => StructField(f.name, zoneless(f.dataType))))
    case other => other
  }
}
