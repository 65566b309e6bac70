package org.apache.spark.sql.udo

import java.nio.{ByteBuffer, ByteOrder}
import java.nio.charset.StandardCharsets
import java.util.UUID

import scala.collection.mutable
import scala.jdk.CollectionConverters._

import org.apache.spark.{SparkContext, SparkException, TaskContext}
import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.analysis.MultiInstanceRelation
import org.apache.spark.sql.catalyst.expressions.{Attribute, AttributeSet, GenericInternalRow, SortOrder, UnsafeProjection}
import org.apache.spark.sql.catalyst.plans.logical.{LogicalPlan, UnaryNode}
import org.apache.spark.sql.catalyst.plans.physical.{Distribution, Partitioning, StatefulOpClusteredDistribution, UnknownPartitioning}
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.{LogicalRDD, SparkPlan, SparkStrategy, UnaryExecNode}
import org.apache.spark.util.LongAccumulator

/** A micro-batch of a run of a streaming query; `asynchronous`: the query writes its offsets now and then, not with each micro-batch. */
private[udo] final case class Epoch(query: UUID, run: UUID, batch: Long, asynchronous: Boolean)

/** The streaming queries of this driver, found by their own sessions, since neither threads nor tasks identify their query. */
private[udo] object Queries {
  /** The micro-batch under way of the query that runs its batches in this session, a clone made for the query alone. */
  def epoch(session: SparkSession): Option[Epoch] =
    active(session).values.asScala.find(own(_) eq session).map { query =>
      // This class also runs real-time mode.
      val asynchronous = query.getClass.getSimpleName == "AsyncProgressTrackingMicroBatchExecution"
      Epoch(query.id, query.runId, query.getLatestExecutionContext().batchId, asynchronous)
    }

  /**
   * The micro-batch in whose foreachBatch a DataFrame is made: in the query's thread, or from a plan that contains the batch's DataFrame.
   */
  def around(session: SparkSession, plan: LogicalPlan): Option[Epoch] = {
    val here = Option(session.sparkContext.getLocalProperty("sql.streaming.queryId")).map(UUID.fromString)
    val sessions = here.flatMap(id => Option(active(session).get(id))).map(own(_)).toSeq ++
      (session +: plan.collect { case rows: LogicalRDD => made(rows) })
    sessions.iterator.flatMap(epoch).nextOption()
  }

  /** The sessions in which queries were started, and those that the queries run their batches in. */
  def sessions(session: SparkSession): Seq[SparkSession] =
    active(session).values.asScala.toSeq.flatMap(query => Seq(query.sparkSession.asInstanceOf[SparkSession], own(query)))

  def isRunning(session: SparkSession, run: UUID): Boolean = active(session).values.asScala.exists(_.runId == run)

  private def active(session: SparkSession) = session.sharedState.activeStreamingQueries

  /** The session that a query runs its batches in; Spark 4.0 shows it to subclasses only. */
  private def own(query: AnyRef): SparkSession =
    query.getClass.getMethod("sparkSessionForStream").invoke(query).asInstanceOf[SparkSession]

  private val sessionOf = {
    val field = classOf[LogicalRDD].getDeclaredField("session")
    field.setAccessible(true)
    field
  }

  private def made(rows: LogicalRDD): SparkSession = sessionOf.get(rows).asInstanceOf[SparkSession]
}

/** For each call in a run of a query, the last epoch with an evaluated partition: the epochs since then are known to have had no effect. */
private[udo] object Evaluated {
  private final case class Last(since: Option[Long], epoch: Long, begun: LongAccumulator)
  private val last = mutable.HashMap.empty[(UUID, String), Last]

  /**
   * Begin an epoch; return the last evaluated epoch before it (-1: none), if this run can know it, and the counter of this epoch's
   * evaluated partitions.
   */
  def begin(call: String, of: Epoch, context: SparkContext, running: UUID => Boolean): (Option[Long], LongAccumulator) = synchronized {
    last.filterInPlace { case ((run, _), _) => running(run) }
    val before = last.get((of.run, call))
    val same = before.filter(_.epoch == of.batch)
    val since = (same, before) match {
      case (Some(again), _) => again.since
      case (_, Some(former)) => if (former.begun.sum > 0) Some(former.epoch) else former.since
      case _ => Option.when(of.batch == 0)(-1L) // before the first epoch there is none
    }
    val begun = same.map(_.begun).getOrElse(context.longAccumulator)
    last((of.run, call)) = Last(since, of.batch, begun)
    (since, begun)
  }
}

/** The epochs that a keyed call takes part in: a `Stream`'s are known when a micro-batch's plan is executed, others when it is made. */
private[udo] sealed trait Belonging
private[udo] case object Stream extends Belonging
private[udo] final case class Inside(epoch: Epoch) extends Belonging
private[udo] case object Job extends Belonging

/**
 * Prepares the rows of a keyed call: one partition for each part of the key groups, and at the beginning of each partition, even one
 * without rows, mark rows, whose key groups encode the partition's number and the evaluation of the plan that it belongs to. All other
 * columns of mark rows are null, so every column is nullable.
 */
private[udo] final case class UdoKeyed(
    deployment: String,
    uid: String,
    group: String,
    partitions: Int,
    order: Seq[SortOrder],
    belonging: Belonging,
    override val output: Seq[Attribute],
    child: LogicalPlan)
    extends UnaryNode
    with MultiInstanceRelation {
  @transient override lazy val references: AttributeSet = AttributeSet(child.output)
  override def producedAttributes: AttributeSet = AttributeSet(output)
  override def newInstance(): LogicalPlan = copy(output = output.map(_.newInstance()))
  override def nodeName: String = s"Udo keys of $deployment"
  override protected def stringArgs: Iterator[Any] = Iterator(s"$partitions partitions")
  override protected def withNewChildInternal(newChild: LogicalPlan): UdoKeyed = copy(child = newChild)
}

private[udo] object UdoKeyed {
  def over(child: LogicalPlan, deployment: String, uid: String, group: String, partitions: Int, order: Seq[SortOrder], of: Belonging) =
    UdoKeyed(deployment, uid, group, partitions, order, of, child.output.map(_.withNullability(true).newInstance()), child)
}

/**
 * A keyed call's answers in a query. The first read of an answer evaluates the whole partition (udo_interface/spark/held.py); a partition that
 * nobody reads, e.g. because a join finds its other side empty, is evaluated when its task ends: else it would stay half done.
 */
private[udo] final case class UdoWhole(deployment: String, child: LogicalPlan) extends UnaryNode {
  override def output: Seq[Attribute] = child.output
  @transient override lazy val references: AttributeSet = AttributeSet(child.output)
  override def nodeName: String = s"Udo answers of $deployment"
  override protected def stringArgs: Iterator[Any] = Iterator.empty
  override protected def withNewChildInternal(newChild: LogicalPlan): UdoWhole = copy(child = newChild)
}

private[udo] object UdoKeyedStrategy extends SparkStrategy {
  override def apply(plan: LogicalPlan): Seq[SparkPlan] = plan match {
    case UdoWhole(deployment, child) => UdoWholeExec(deployment, planLater(child)) :: Nil
    case UdoKeyed(deployment, uid, group, partitions, order, belonging, output, child) =>
      val by = child.output.find(_.name == group).getOrElse(throw new IllegalStateException(s"no column $group in ${child.output}"))
      UdoKeyedExec(deployment, uid, by, partitions, order, belonging, output, planLater(child)) :: Nil
    case _ => Nil
  }
}

private[udo] final case class UdoKeyedExec(
    deployment: String,
    uid: String,
    group: Attribute,
    partitions: Int,
    order: Seq[SortOrder],
    belonging: Belonging,
    override val output: Seq[Attribute],
    child: SparkPlan)
    extends UnaryExecNode {
  override def producedAttributes: AttributeSet = AttributeSet(output)
  override def requiredChildDistribution: Seq[Distribution] = StatefulOpClusteredDistribution(Seq(group), partitions) :: Nil
  override def requiredChildOrdering: Seq[Seq[SortOrder]] = Seq(order)
  override def outputPartitioning: Partitioning = UnknownPartitioning(partitions)
  override def nodeName: String = s"Udo keys of $deployment"
  override protected def stringArgs: Iterator[Any] = Iterator(s"$partitions partitions that say their number and epoch")
  override protected def withNewChildInternal(newChild: SparkPlan): UdoKeyedExec = copy(child = newChild)

  override protected def doExecute(): RDD[InternalRow] = {
    val (evaluation, begun) = belonging match {
      case Stream => of(Queries.epoch(session).getOrElse(throw notRunning()))
      case Inside(epoch) => of(epoch)
      case Job => (s""""job":"${UUID.randomUUID()}"""", None)
    }
    val rows = child.execute()
    if (rows.getNumPartitions != partitions)
      throw SparkException.internalError(s"$nodeName: expected $partitions partitions, Spark has made ${rows.getNumPartitions}")
    // Unlike mapPartitions it does not look into the closure, whose class Spark's own loader does not know.
    rows.mapPartitionsWithIndexInternal(new Marks(evaluation, begun, output, child.output.indexWhere(_.exprId == group.exprId)))
  }

  private def of(epoch: Epoch): (String, Option[LongAccumulator]) = {
    val (since, begun) = Evaluated.begin(s"$deployment $uid", epoch, sparkContext, Queries.isRunning(session, _))
    val told = s""""query":"${epoch.query}","run":"${epoch.run}","epoch":${epoch.batch},"asynchronous":${epoch.asynchronous}"""
    (told + since.fold("")(e => s""","since":$e"""), Some(begun))
  }

  private def notRunning() =
    new IllegalStateException(s"$nodeName: the call was made on a stream, and no streaming query runs in the session that carries it out")
}

private[udo] final case class UdoWholeExec(deployment: String, child: SparkPlan) extends UnaryExecNode {
  override def output: Seq[Attribute] = child.output
  override def outputPartitioning: Partitioning = child.outputPartitioning
  override def nodeName: String = s"Udo answers of $deployment"
  override protected def stringArgs: Iterator[Any] = Iterator.empty
  override protected def withNewChildInternal(newChild: SparkPlan): UdoWholeExec = copy(child = newChild)
  override protected def doExecute(): RDD[InternalRow] = child.execute().mapPartitionsInternal(new Whole)
}

/** Asks for an answer when the task ends, if nobody has. The call below ends after that: listeners run in the reverse order. */
private[udo] final class Whole extends (Iterator[InternalRow] => Iterator[InternalRow]) with Serializable {
  override def apply(rows: Iterator[InternalRow]): Iterator[InternalRow] = {
    val context = TaskContext.get()
    var asked = false
    context.addTaskCompletionListener[Unit](_ => if (!asked && !context.isFailed() && !context.isInterrupted()) rows.hasNext)
    new Iterator[InternalRow] {
      override def hasNext: Boolean = {
        asked = true
        rows.hasNext
      }
      override def next(): InternalRow = {
        asked = true
        rows.next()
      }
    }
  }
}

/**
 * Puts the mark in front of each partition, in the column `group`, so that rows need no further column: the length of its UTF-8 as a
 * negative number, which no key group is, then its bytes, four to a row, little endian, filled up with zeros.
 */
private[udo] final class Marks(evaluation: String, begun: Option[LongAccumulator], output: Seq[Attribute], group: Int)
    extends ((Int, Iterator[InternalRow]) => Iterator[InternalRow])
    with Serializable {
  override def apply(partition: Int, rows: Iterator[InternalRow]): Iterator[InternalRow] = {
    begun.foreach(_.add(1))
    val mark = s"""{$evaluation,"partition":$partition}""".getBytes(StandardCharsets.UTF_8)
    val words = mark.grouped(4).map(bytes => ByteBuffer.wrap(bytes.padTo(4, 0.toByte)).order(ByteOrder.LITTLE_ENDIAN).getInt)
    val (row, unsafe) = (new GenericInternalRow(output.length), UnsafeProjection.create(output, output))
    (Iterator.single(-mark.length) ++ words).map { word =>
      row.update(group, word)
      unsafe(row): InternalRow
    } ++ rows
  }
}
