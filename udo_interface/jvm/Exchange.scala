package org.apache.spark.sql.udo

import scala.collection.immutable.ArraySeq
import scala.collection.mutable

import org.apache.arrow.memory.BufferAllocator
import org.apache.arrow.vector.types.pojo.Schema

import org.apache.spark.TaskContext
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{BoundReference, UnsafeProjection}
import org.apache.spark.sql.execution.metric.SQLMetric
import org.apache.spark.sql.types.DataType
import org.apache.spark.sql.util.ArrowUtils

/** The metrics of a call in Spark's UI. */
private[udo] final case class Counters(
    rowsSent: SQLMetric,
    rowsAnswered: SQLMetric,
    frames: SQLMetric,
    bytesSent: SQLMetric,
    waitedNs: SQLMetric)

/** Bounds of a frame: those of the session for Arrow batches. */
private[udo] final case class FrameBounds(rows: Int, bytes: Long)

/**
 * The call's work in each task. It is serialised, so it holds no open resources. `realTime`: in real-time mode, the types of all columns of
 * the rows.
 */
private[udo] final class Exchanges(
    call: Call,
    planned: Seq[DataType],
    kept: Seq[DataType],
    frame: FrameBounds,
    counters: Counters,
    realTime: Option[Seq[DataType]])
    extends (Iterator[InternalRow] => Iterator[InternalRow])
    with Serializable {
  override def apply(given: Iterator[InternalRow]): Iterator[InternalRow] = {
    val context = TaskContext.get()
    val rows = realTime.fold(given)(new Ahead(given, _, frame, context))
    if (call.keys.nonEmpty || rows.hasNext) new Exchange(call, planned, kept, frame, counters, rows, context)
    else Iterator.empty // nothing to ask
  }
}

/**
 * The answers to the rows of one partition: batches go out as frames, up to a window ahead of their answers. A keyed attempt closes with
 * END; if it is at a micro-batch of a query, no answer is handed out before the whole partition is answered.
 */
private[udo] final class Exchange(
    call: Call,
    planned: Seq[DataType],
    kept: Seq[DataType],
    bound: FrameBounds,
    counters: Counters,
    rows: Iterator[InternalRow],
    context: TaskContext)
    extends Iterator[InternalRow] {
  private val schema = Body.schema(call.input.toArray)
  private val expected = Body.schema(call.output.toArray)
  private val allocator: BufferAllocator =
    ArrowUtils.rootAllocator.newChildAllocator(s"udo ${call.deployment} ${context.taskAttemptId()}", 0, Long.MaxValue)
  private val keep = UnsafeProjection.create(kept.zipWithIndex.map { case (t, i) => BoundReference(call.columns.size + i, t, nullable = true) })
  private val schemas = mutable.Map(call.outputId -> expected)
  private val readers = mutable.Map.empty[(Seq[Byte], Int), Answers]
  private val ahead = rows match {
    case ahead: Ahead => ahead
    case _ => null
  }
  private val buffers = Seq.fill(2)(mutable.ArrayBuffer.empty[Events])
  private val asked = mutable.Queue.empty[Item]
  private var of: Attempt = _
  private var held = Option.empty[Held]
  private var lanes: Lanes = _
  private var slots: Slots = _
  private var current: Iterator[InternalRow] = Iterator.empty
  private var reading = Option.empty[Item]
  private var turn = 0
  private var ended = false
  private var gathered: Gathered = _ // rows of a block that did not fit into the last frame
  @volatile private var closed = false
  private val inUse = new InUse(() => free())

  context.addTaskCompletionListener[Unit](_ => close())
  try {
    of = Attempt.of(call, rows, context)
    held = of.keyed.filter(_.run.nonEmpty).map(_ => new Held(allocator))
    lanes = Lanes.open(call, of, allocator)
    slots = new Slots(lanes, of, counters, check)
  } catch {
    case e: UdoException => throw e.forSpark
  }

  override def hasNext: Boolean =
    try current.hasNext || !closed && inUse(more())
    catch {
      case e: UdoException => throw e.forSpark
    }

  private def more(): Boolean = {
    while (!current.hasNext && !closed) {
      release()
      if (asked.headOption.exists(_.complete)) {
        val item = asked.dequeue()
        held.fold(read(item))(_.add(item))
      } else if (!step()) {
        held.filterNot(_.isEmpty) match {
          case Some(items) =>
            lanes.close()
            read(items.next())
          case None => close()
        }
      }
    }
    !closed
  }

  override def next(): InternalRow = {
    if (!hasNext) throw new NoSuchElementException
    try current.next()
    catch {
      case e: UdoException => throw malformed(e).forSpark
    }
  }

  /** Send a batch or END, or wait for an answer; false when all is answered. */
  private def step(): Boolean =
    // Answered batches wait behind an unanswered one: bound them by the frames that all slots may have under way. No answer waits for
    // an event.
    if (!ended && asked.size <= lanes.opened.window * slots.size && (ahead == null || asked.isEmpty || ahead.ready)) {
      if (gathered != null || rows.hasNext) {
        asked += new Item
        slots.send(asked.last, filled(asked.last))
      } else {
        ended = true
        if (of.keyed.nonEmpty) {
          asked += new Item
          slots.end(asked.last, void = false)
        }
      }
      true
    } else {
      val item = asked.find(!_.complete)
      item.flatMap(_.awaited).foreach(slots.await)
      item.nonEmpty
    }

  /** The next batch, by slot. There are two sets of buffers, since one may still be on its way. */
  private def filled(item: Item): Seq[Piece] = {
    turn = 1 - turn
    val to = buffers(turn)
    slots.settle(to)
    while (to.size < slots.size) to += new Events(schema, allocator)
    to.foreach(_.reset())
    val (only, placed) = (to.head, if (slots.size == 1) null else Array.fill(slots.size)(mutable.ArrayBuilder.make[Int]))
    val keeping = kept.nonEmpty
    var n = 0
    var keptBytes = 0L
    // Asking for the size with every row, as mapInArrow does, would cost as much as all the rest.
    var ask = ColumnWriter.Rows
    while (n < bound.rows && (ahead == null || n == 0 || ahead.ready) && (gathered != null || rows.hasNext) && (n < ask || written(to) + keptBytes < bound.bytes)) {
      if (n >= ask) ask = n + ColumnWriter.Rows
      val row = if (gathered != null) gathered else rows.next()
      row match {
        case block: Gathered =>
          val some = math.min(block.rows, bound.rows - n)
          only.write(block, some)
          gathered = if (block.rows > 0) block else null
          n += some
          ask = n
        case _ =>
          if (keeping) {
            item.kept += keep(row).copy()
            keptBytes += item.kept.last.getSizeInBytes
          }
          if (placed == null) only.write(row)
          else {
            val slot = slots.place(row.getInt(call.group))
            to(slot).write(row)
            placed(slot) += n
          }
          n += 1
      }
    }
    to.foreach(_.finish())
    counters.rowsSent += n
    if (placed == null) Seq(Piece(0, 0 until n, only, 0))
    else placed.indices.filter(to(_).rows > 0).map(slot => Piece(slot, ArraySeq.unsafeWrapArray(placed(slot).result()), to(slot), 0))
  }

  /** Bytes that have been written; a loop, since a sum over a collection would cost a tenth of what the rows cost. */
  private def written(to: mutable.ArrayBuffer[Events]): Long = {
    var bytes = 0L
    var i = 0
    while (i < to.size) {
      bytes += to(i).size
      i += 1
    }
    bytes
  }

  /** Throw unless the answer reports no failure and its columns serve. */
  private def check(lane: Lane, answer: Frame): Unit = {
    lane.check(answer.header)
    if (answer.size > 0 && !schemas.contains(answer.header.schema)) schemas(answer.header.schema) = other(lane, answer.header)
  }

  /** The schema of a version that answers with other columns than the query was planned with, if these can serve as the planned ones. */
  private def other(lane: Lane, header: Header): Schema = {
    val ipc = lane.schema(header.schema)
    val found =
      try Body.schema(ipc)
      catch {
        case e @ (_: java.io.IOException | _: RuntimeException) =>
          throw UdoException.protocol(s"${lane.place} answered with a malformed frame: its schema is none: ${e.getMessage}")
      }
    val problems = Answers.misfits(found, expected)
    if (problems.nonEmpty)
      throw UdoException.byCode(
        "schema",
        s"${lane.place}, version ${header.version}, answers with columns that this query was not planned with: ${problems.mkString("; ")}")
    found
  }

  /** Read the answers of an item in the order of its rows; part by part, if there is not one answer per row. */
  private def read(item: Item): Unit = {
    reading = Some(item)
    val parts = item.parts.toSeq
    current =
      if (parts.size == 1) loaded(parts.head, 0)
      else if (item.inOrder || parts.exists(part => part.answer.header.rows != part.rows.size))
        parts.iterator.flatMap(part => inUse(loaded(part, 0)))
      else {
        val from = new Array[Int](parts.map(_.rows.size).sum)
        parts.zipWithIndex.foreach { case (part, i) => part.rows.foreach(from(_) = i) }
        val all = parts.zipWithIndex.map { case (part, i) => loaded(part, i) }
        from.iterator.map(all(_).next())
      }
  }

  /** The rows of a part's answer. Parts that are read at the same time need different readers, by `number`. */
  private def loaded(part: Part, number: Int): Iterator[InternalRow] = {
    val answer = part.answer
    part.answer = null
    var done = false
    try {
      val id = if (answer.size == 0) call.outputId else answer.header.schema
      val reader =
        readers.getOrElseUpdate((id, number), new Answers(schemas(id), expected, planned.dropRight(kept.size), kept, allocator, inUse))
      if (kept.nonEmpty) requireOneEach(part, answer.header.rows)
      val found =
        try reader.rows(answer, part.rows.iterator.map(part.item.kept))
        catch {
          case e: UdoException if e.kind == "ProtocolError" => throw malformed(e)
        }
      counters.rowsAnswered += answer.header.rows
      done = true
      found
    } finally
      try answer.bytes.close()
      catch {
        // Arrow's vectors lose count of their buffers when a load fails half-way; the load's own error is worth more than this one.
        case _: IllegalStateException if !done =>
      }
  }

  private def requireOneEach(part: Part, answers: Long): Unit = {
    val events = part.rows.size
    val (place, deployment) = (lanes.opened.slots.head.place, call.deployment)
    val told = s"$place: keep= needs exactly one answer per event, but $events events got $answers answers"
    if (answers < events && lanes.opened.policy == Exchange.DeadLetter)
      throw UdoException.byCode(
        "operator",
        s"$told. Under this deployment's policy '${Exchange.DeadLetter}' an event that the operator fails on gets none (udo dead ls " +
          s"$deployment): drop keep= and let the operator return those columns itself, or deploy it with --on-error fail")
    if (answers != events)
      throw UdoException.byCode("operator", s"$told; drop keep=, or let the operator return those columns itself")
  }

  private def malformed(e: UdoException) =
    new UdoException(e.kind, s"${lanes.opened.slots.head.place} answered with a malformed frame: ${e.getMessage}")

  private def release(): Unit = {
    reading.foreach(_ => readers.values.foreach(_.clear()))
    reading = None
  }

  /** If Spark wants no more answers of a keyed job (a limit), end the attempt without a trace in the state. */
  private def cutShort(): Unit =
    if (slots != null && of.keyed.nonEmpty && held.isEmpty && !context.isFailed() && !context.isInterrupted()) {
      val item = new Item
      try {
        if (!ended) slots.end(item, void = true)
        slots.awaitAll()
      } catch {
        case _: UdoException => // about events whose answers nobody wants any more
      } finally item.close()
    }

  private def close(): Unit = inUse.end()

  private def free(): Unit = {
    closed = true
    current = Iterator.empty
    // Take each step even if another one fails: whatever happened, the lane's answers and credits are freed at once.
    val steps: Seq[() => Unit] = Seq(
      () => cutShort(),
      () => (asked ++ reading).foreach(_.close()),
      () => held.foreach(_.close()),
      () => if (lanes != null) lanes.close(),
      () => if (slots != null) slots.close(),
      () => buffers.flatten.foreach(_.close()),
      () => readers.values.foreach(_.close()),
      () => allocator.close())
    val failed = Lanes.each(steps)
    // A leak of buffers is our mistake and is reported, unless the task has a worse failure to report.
    if (failed.nonEmpty && !context.isFailed() && !context.isInterrupted()) throw failed.head
  }
}

private[udo] object Exchange {
  private val DeadLetter = "dead-letter"
}
