package org.apache.spark.sql.udo

import java.util.function.{ObjIntConsumer, Supplier}

import org.apache.arrow.vector.{BaseFixedWidthVector, VarBinaryVector, VarCharVector}
import org.apache.arrow.vector.types.pojo.Schema

import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{Attribute, AttributeSet, GenericInternalRow}
import org.apache.spark.sql.catalyst.expressions.codegen.{CodegenContext, ExprCode}
import org.apache.spark.sql.catalyst.plans.physical.Partitioning
import org.apache.spark.sql.execution.{CodegenSupport, SparkPlan, UnaryExecNode}
import org.apache.spark.sql.types.{BinaryType, BooleanType, DataType, DoubleType, FloatType, StringType}
import org.apache.spark.sql.util.ArrowUtils
import org.apache.spark.unsafe.Platform
import org.apache.spark.unsafe.types.UTF8String

/**
 * Takes part in the code that Spark generates for the plan below the call: values go straight into blocks of `ColumnWriter`'s form, and the
 * call gets one "row" for each block. Without it Spark would write every row to bytes, to be read again one call later. Where Spark
 * generates no code, this node hands its rows on as they are.
 */
private[udo] final case class UdoGatherExec(deployment: String, child: SparkPlan) extends UnaryExecNode with CodegenSupport {
  override def output: Seq[Attribute] = child.output
  override def outputPartitioning: Partitioning = child.outputPartitioning
  override def nodeName: String = "UdoEvents" // part of names in the generated code
  override protected def stringArgs: Iterator[Any] = Iterator(deployment)
  override protected def withNewChildInternal(newChild: SparkPlan): UdoGatherExec = copy(child = newChild)

  /** In real-time mode the rows are read ahead one by one. */
  override def supportCodegen: Boolean = UdoExec.realTime(child).isEmpty

  override protected def doExecute(): RDD[InternalRow] = child.execute()
  override def inputRDDs(): Seq[RDD[InternalRow]] = child.asInstanceOf[CodegenSupport].inputRDDs()

  /** All: so that Spark may put the code of `doConsume` into a function of its own, if it gets long. */
  override def usedInputs: AttributeSet = outputSet

  // Terms of the generated code, which names only classes that Spark's own loader knows.
  @transient private var begin, block, count, texts, gathered: String = _

  override protected def doProduce(ctx: CodegenContext): String = {
    val made = ctx.addReferenceObj("gathering", new Gathering(output.size), classOf[Supplier[_]].getName)
    val writer = classOf[ObjIntConsumer[_]].getName
    def state(kind: String, name: String) = ctx.addMutableState(kind, name, forceInline = true)
    gathered = state("InternalRow", "gathered")
    texts = state(writer, "gatheredTexts")
    block = state("long[]", "gatheredBlock")
    count = state("int[]", "gatheredCount")
    begin = ctx.freshName("beginBlock")
    val parts = ctx.freshName("parts")
    begin = ctx.addNewFunction(
      begin,
      s"""
         |private void $begin() {
         |  Object[] $parts = (Object[]) $made.get();
         |  $gathered = (InternalRow) $parts[0];
         |  $texts = ($writer) $parts[0];
         |  $block = (long[]) $parts[1];
         |  $count = (int[]) $parts[2];
         |}
       """.stripMargin)
    ctx.addPartitionInitializationStatement(s"$begin();")
    // A full block has been handed over already.
    s"""
       |${child.asInstanceOf[CodegenSupport].produce(ctx, this)}
       |if ($count[0] > 0 && $count[0] < $count[1]) append($gathered);
     """.stripMargin
  }

  override def doConsume(ctx: CodegenContext, input: Seq[ExprCode], row: ExprCode): String = {
    val nullWords = ColumnWriter.nullWords(output.size)
    val start = ctx.freshName("start")
    val nulls = (0 until nullWords).map(i => s"$block[$start + $i] = 0L;")
    val values = input.zip(output).zipWithIndex.map { case ((value, column), i) =>
      val word = s"$block[$start + ${nullWords + i}]"
      val put = column.dataType match {
        case _: StringType | BinaryType => s"$texts.accept(${value.value}, $i);"
        case other => s"$word = ${UdoGatherExec.word(value.value.toString, other)};"
      }
      if (column.nullable) s"if (${value.isNull}) { $block[$start + ${i / 64}] |= ${1L << (i % 64)}L; $word = 0L; } else { $put }" else put
    }
    // Some plans make several rows of one, and hand over no block before they have made them all.
    s"""
       |${evaluateVariables(input)}
       |if ($count[0] >= $count[1]) $begin();
       |int $start = $count[0] * ${nullWords + output.size};
       |${nulls.mkString("\n")}
       |${values.mkString("\n")}
       |if (++$count[0] >= $count[1]) append($gathered);
     """.stripMargin
  }
}

private[udo] object UdoGatherExec {
  /** Whether all columns have a plain form, so that blocks can hold them. */
  def serves(schema: Schema): Boolean = schema.getFields.stream.allMatch { field =>
    val vector = field.createVector(ArrowUtils.rootAllocator)
    try
      vector match {
        case v: BaseFixedWidthVector => Plain.width(v) >= 0
        case _: VarCharVector | _: VarBinaryVector => true
        case _ => false
      }
    finally vector.close()
  }

  /** The value as a word of a block. */
  private def word(value: String, of: DataType): String = of match {
    case BooleanType => s"($value ? 1L : 0L)"
    case FloatType => s"(long) Float.floatToRawIntBits($value)"
    case DoubleType => s"Double.doubleToRawLongBits($value)"
    case _ => s"(long) ($value)"
  }
}

/** Makes what generated code gathers rows into: an array of the row that stands for them, their words, and their number. */
private[udo] final class Gathering(fields: Int) extends Supplier[Array[AnyRef]] with Serializable {
  override def get(): Array[AnyRef] = {
    val gathered = new Gathered(fields)
    Array(gathered, gathered.block, gathered.count)
  }
}

/** Rows in the form of ColumnWriter's block, and the bytes of texts by column, one after the other. For Spark this is a row. */
private[udo] final class Gathered(fields: Int) extends GenericInternalRow(Array.empty[Any]) with ObjIntConsumer[AnyRef] {
  import Gathered._

  private val nullWords = ColumnWriter.nullWords(fields)
  private val words = nullWords + fields
  private val staged = Array.fill(fields)(new Staged)
  private var size = 0L
  private var taken = 0
  val block = new Array[Long](ColumnWriter.Rows * words)
  /** The number of rows gathered, and how many there are to be. */
  val count: Array[Int] = Array(0, ColumnWriter.Rows)

  /** The rows that have not been taken. */
  def rows: Int = count(0) - taken

  /** Add the text or the bytes of this field of the row that is being gathered. */
  override def accept(value: AnyRef, field: Int): Unit = {
    val more = staged(field).add(value)
    block(count(0) * words + nullWords + field) = more
    size += more
    if (size >= EnoughBytes) count(1) = count(0) + 1
  }

  /** Write the next `n` rows to the columns; once all have been written, others may be gathered. */
  def take(n: Int, columns: ColumnWriter): Unit = {
    columns.write(block, taken, n, staged)
    taken += n
    if (rows == 0) {
      count(0) = 0
      count(1) = ColumnWriter.Rows
      taken = 0
      size = 0
      staged.foreach(_.clear())
    }
  }
}

private[udo] object Gathered {
  /** So many bytes of texts end a block. */
  private val EnoughBytes = 1 << 20
  private val FirstBytes = 1 << 10

  /** The bytes of a column's texts, and where the next row's begin. */
  final class Staged {
    var bytes: Array[Byte] = Array.emptyByteArray
    var at = 0
    private var end = 0

    /** Add a text or bytes; return their size. */
    def add(value: AnyRef): Int = value match {
      case text: UTF8String =>
        text.writeToMemory(room(text.numBytes), Platform.BYTE_ARRAY_OFFSET + end.toLong)
        end += text.numBytes
        text.numBytes
      case binary: Array[Byte] =>
        System.arraycopy(binary, 0, room(binary.length), end, binary.length)
        end += binary.length
        binary.length
    }

    private def room(more: Int): Array[Byte] = {
      val needed = Math.addExact(end, more)
      val larger = math.max(FirstBytes, math.min(2 * bytes.length, EnoughBytes))
      if (bytes.length < needed) bytes = java.util.Arrays.copyOf(bytes, math.max(needed, larger))
      bytes
    }

    def clear(): Unit = {
      at = 0
      end = 0
      if (bytes.length > 2 * EnoughBytes) bytes = Array.emptyByteArray // of a text that was larger than most
    }
  }
}
