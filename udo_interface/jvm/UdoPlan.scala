package org.apache.spark.sql.udo

import org.apache.spark.rdd.RDD
import org.apache.spark.sql.{DataFrame, Row}
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.analysis.MultiInstanceRelation
import org.apache.spark.sql.catalyst.expressions.{Attribute, AttributeSet}
import org.apache.spark.sql.catalyst.plans.logical.{LogicalPlan, Sort, UnaryNode}
import org.apache.spark.sql.catalyst.plans.physical.Partitioning
import org.apache.spark.sql.catalyst.types.DataTypeUtils
import org.apache.spark.sql.classic.{Dataset, SparkSession}
import org.apache.spark.sql.execution.{SparkPlan, SparkStrategy, UnaryExecNode}
import org.apache.spark.sql.execution.adaptive.AdaptiveSparkPlanHelper
import org.apache.spark.sql.execution.metric.SQLMetrics
import org.apache.spark.sql.types.{DataType, StructType}

/** The entry point for udo_interface/spark/jvm_path.py. It has no state: one instance is as good as another. */
final class UdoCalls {
  /**
   * Send `df` through the operator. Its columns are those sent, in their order, then those kept. `schema`: the Spark schema, as JSON, of
   * the answers and the kept columns.
   */
  def through(df: Dataset[Row], call: String, schema: String): DataFrame = {
    val session = df.sparkSession
    val output = DataTypeUtils.toAttributes(DataType.fromJson(schema).asInstanceOf[StructType])
    plan(session, UdoStrategy)
    Dataset.ofRows(session, Udo(Call.parse(call), output, df.logicalPlan))
  }

  /**
   * `df` in partitions by its column `group`, each of which begins with its mark rows. If `ordered`, `df` is sorted within
   * partitions, and so is the result.
   */
  def keyed(df: Dataset[Row], deployment: String, uid: String, group: String, partitions: Int, ordered: Boolean): DataFrame = {
    val session = df.sparkSession
    plan(session, UdoKeyedStrategy)
    val belonging =
      if (df.isStreaming) Stream else Queries.around(session, df.logicalPlan).fold[Belonging](Job)(Inside(_))
    val (order, rows) = df.logicalPlan match {
      case sorted: Sort if ordered && !sorted.global => (sorted.order, sorted.child)
      case other => (Nil, other)
    }
    Dataset.ofRows(session, UdoKeyed.over(rows, deployment, uid, group, partitions, order, belonging))
  }

  /** `df`, the answers of a keyed call in a query: each partition is evaluated whole, however little of it is read. */
  def whole(df: Dataset[Row], deployment: String): DataFrame = Dataset.ofRows(df.sparkSession, UdoWhole(deployment, df.logicalPlan))

  /** Query, run and micro-batch in whose foreachBatch `df` is made; empty if it is made in none. */
  def around(df: Dataset[Row]): Array[String] =
    Queries.around(df.sparkSession, df.logicalPlan).fold(Array.empty[String])(e => Array(s"${e.query}", s"${e.run}", s"${e.batch}"))

  /** Register the strategy, also in sessions whose DataFrames may be combined with the call's: the leftmost DataFrame's session plans. */
  private def plan(session: SparkSession, strategy: SparkStrategy): Unit = synchronized {
    val others = SparkSession.getActiveSession ++ SparkSession.getDefaultSession ++ Queries.sessions(session)
    for (each <- (others.toSeq :+ session).distinct if !each.experimental.extraStrategies.contains(strategy))
      each.experimental.extraStrategies = each.experimental.extraStrategies :+ strategy
  }
}

/** A call of an operator in a query. Its output has none of its child's columns. */
private[udo] final case class Udo(call: Call, override val output: Seq[Attribute], child: LogicalPlan)
    extends UnaryNode
    with MultiInstanceRelation {
  @transient override lazy val references: AttributeSet = AttributeSet(child.output)
  override def producedAttributes: AttributeSet = AttributeSet(output)
  override def newInstance(): LogicalPlan = copy(output = output.map(_.newInstance()))
  override def nodeName: String = s"Udo ${call.deployment}"
  override protected def stringArgs: Iterator[Any] = Iterator(output)
  override protected def withNewChildInternal(newChild: LogicalPlan): Udo = copy(child = newChild)
}

private[udo] object UdoStrategy extends SparkStrategy {
  override def apply(plan: LogicalPlan): Seq[SparkPlan] = plan match {
    case Udo(call, output, child) =>
      val plain = call.keys.isEmpty && child.output.size == call.columns.size && UdoGatherExec.serves(Body.schema(call.input.toArray))
      UdoExec(call, output, if (plain) UdoGatherExec(call.deployment, planLater(child)) else planLater(child)) :: Nil
    case _ => Nil
  }
}

/** The physical plan of the call: the executor's JVM itself carries it out. */
private[udo] final case class UdoExec(call: Call, override val output: Seq[Attribute], child: SparkPlan)
    extends UnaryExecNode {
  override def producedAttributes: AttributeSet = AttributeSet(output)
  override def outputPartitioning: Partitioning = child.outputPartitioning
  override def nodeName: String = s"Udo ${call.deployment} in the JVM"
  override protected def stringArgs: Iterator[Any] = Iterator(output)
  override protected def withNewChildInternal(newChild: SparkPlan): UdoExec = copy(child = newChild)

  override lazy val metrics = Map(
    "numInputRows" -> SQLMetrics.createMetric(sparkContext, "number of rows sent"),
    "numOutputRows" -> SQLMetrics.createMetric(sparkContext, "number of output rows"),
    "numFrames" -> SQLMetrics.createMetric(sparkContext, "number of frames sent"),
    "bytesSent" -> SQLMetrics.createSizeMetric(sparkContext, "data sent to the operator"),
    "waitTime" -> SQLMetrics.createNanoTimingMetric(sparkContext, "time waiting for answers"))

  override protected def doExecute(): RDD[InternalRow] = {
    val (sentColumns, kept) = child.output.splitAt(call.columns.size)
    require(sentColumns.map(_.name) == call.columns, s"expected the columns ${call.columns}, got ${child.output}")
    val Seq(sent, answered, frames, bytes, waited) =
      Seq("numInputRows", "numOutputRows", "numFrames", "bytesSent", "waitTime").map(longMetric)
    val most = conf.arrowMaxRecordsPerBatch
    val bounds = FrameBounds(if (most > 0) most else Int.MaxValue, UdoExec.maxBytes(conf))
    val counters = Counters(sent, answered, frames, bytes, waited)
    val realTime = UdoExec.realTime(child).map(_ => child.output.map(_.dataType))
    // Unlike mapPartitions it does not look into the closure, whose class Spark's own loader does not know.
    child.execute().mapPartitionsInternal(new Exchanges(call, output.map(_.dataType), kept.map(_.dataType), bounds, counters, realTime))
  }
}

private[udo] object UdoExec extends AdaptiveSparkPlanHelper {
  /** The source of real-time mode, which Spark 4.0 does not have. */
  private val RealTimeScan = "RealTimeStreamScanExec"
  private val MaxBytes = "spark.sql.execution.arrow.maxBytesPerBatch"

  /** The source of real-time mode below, if there is one. */
  def realTime(plan: SparkPlan): Option[SparkPlan] = find(plan)(_.getClass.getSimpleName == RealTimeScan)

  /** About how many bytes a batch may have; Spark 4.0 does not know the setting. */
  private def maxBytes(conf: org.apache.spark.sql.internal.SQLConf): Long = {
    val bytes = org.apache.spark.network.util.JavaUtils.byteStringAsBytes(conf.getConfString(MaxBytes, "64m"))
    if (bytes > 0) bytes else Long.MaxValue
  }
}
