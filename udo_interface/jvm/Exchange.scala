package org.apache.spark.sql.udo

import scala.collection.mutable

import org.apache.arrow.memory.BufferAllocator
import org.apache.arrow.vector.types.pojo.Schema

import org.apache.spark.TaskContext
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.execution.metric.SQLMetric
import org.apache.spark.sql.types.DataType
import org.apache.spark.sql.util.ArrowUtils

/** What Spark's UI shows of a call. */
private[udo] final case class Counters(
    rowsSent: SQLMetric,
    rowsAnswered: SQLMetric,
    frames: SQLMetric,
    bytesSent: SQLMetric,
    waitedNs: SQLMetric)

/** Bounds of a frame, as the session has them for Arrow batches. */
private[udo] final case class FrameBounds(rows: Int, bytes: Long)

/** What the call does in each task. It is serialised, and so holds nothing that is open. */
private[udo] final class Exchanges(call: Call, planned: Seq[DataType], frame: FrameBounds, counters: Counters)
    extends (Iterator[InternalRow] => Iterator[InternalRow])
    with Serializable {
  override def apply(rows: Iterator[InternalRow]): Iterator[InternalRow] =
    if (rows.hasNext) new Exchange(call, planned, frame, counters, rows, TaskContext.get()) else Iterator.empty // nothing to ask
}

/** The answers to the rows of one partition: batches go out as frames, up to a window ahead of their answers. */
private[udo] final class Exchange(
    call: Call,
    planned: Seq[DataType],
    bound: FrameBounds,
    counters: Counters,
    rows: Iterator[InternalRow],
    context: TaskContext)
    extends Iterator[InternalRow] {
  private val of = Attempt.of(call, context)
  private val expected = Body.schema(call.output.toArray)
  private val allocator: BufferAllocator =
    ArrowUtils.rootAllocator.newChildAllocator(s"udo ${call.deployment} ${context.taskAttemptId()}", 0, Long.MaxValue)
  private val readers = mutable.Map.empty[Seq[Byte], Answers]
  private val answers = mutable.Queue.empty[Frame]
  private var events = Seq.empty[Events]
  private var lane: Lane = _
  private var current: Iterator[InternalRow] = Iterator.empty
  private var reading: Answers = _
  private var turn = 0
  private var closed = false

  context.addTaskCompletionListener[Unit](_ => close())
  lane =
    try Lane.open(call, of, allocator)
    catch {
      case e: UdoException => throw e.forSpark
    }
  events = Seq.fill(2)(new Events(Body.schema(call.input.toArray), allocator))

  override def hasNext: Boolean =
    try {
      while (!current.hasNext && !closed) {
        release()
        if (answers.nonEmpty) read(answers.dequeue())
        else if (lane.mayPush() && rows.hasNext) send()
        else if (lane.pending > 0) collect()
        else close()
      }
      !closed
    } catch {
      case e: UdoException if e.kind == "ServerLost" => throw e.at(lane.place).forSpark
      case e: UdoException => throw e.forSpark
    }

  override def next(): InternalRow = {
    if (!hasNext) throw new NoSuchElementException
    try current.next()
    catch {
      case e: UdoException => throw malformed(e).forSpark
    }
  }

  /** The next frame, or frames if its events are above the deployment's bound. Of two sets of buffers one may still be on its way. */
  private def send(): Unit = {
    turn = 1 - turn
    val n = events(turn).fill(rows, bound.rows, bound.bytes)
    counters.rowsSent += n
    push(events(turn), 0, n)
  }

  private def push(from: Events, at: Int, n: Int): Unit = {
    val tooLarge = from.message(at, n) { message =>
      val frame = lane.frame(n, of, message)
      if (frame.size <= lane.frameBytes) {
        while (!lane.mayPush()) collect()
        lane.push(frame)
        counters.frames += 1
        counters.bytesSent += frame.size
        // The rest of a batch that was cut lies in buffers of its own only until here.
        if (n < from.rows) lane.settle()
        0L
      } else frame.size
    }
    if (tooLarge > 0) {
      if (n == 1)
        throw UdoException.byCode(
          "usage",
          s"${lane.place}: one event takes $tooLarge bytes; the bound is ${lane.frameBytes} (limit frame_bytes of the deployment)")
      push(from, at, n / 2)
      push(from, at + n / 2, n - n / 2)
    }
  }

  private def collect(): Unit = {
    val started = System.nanoTime()
    try answers ++= lane.collect()
    finally counters.waitedNs += System.nanoTime() - started
  }

  private def read(answer: Frame): Unit = {
    var done = false
    try {
      lane.check(answer.header)
      reading = reader(answer)
      current =
        try reading.rows(answer)
        catch {
          case e: UdoException if e.kind == "ProtocolError" => throw malformed(e)
        }
      counters.rowsAnswered += answer.header.rows
      done = true
    } finally
      try answer.bytes.close()
      catch {
        // Arrow's vectors lose count of their buffers when a load fails half-way; what failed is worth more than that.
        case _: IllegalStateException if !done =>
      }
  }

  private def malformed(e: UdoException) =
    new UdoException(e.kind, s"${lane.place} answered with a malformed frame: ${e.getMessage}")

  private def reader(answer: Frame): Answers = {
    val id = if (answer.size == 0) call.outputId else answer.header.schema
    readers.getOrElseUpdate(id, new Answers(if (id == call.outputId) expected else other(answer.header), expected, planned, allocator))
  }

  /** The schema of a version that answers with other columns than the query was planned with, if they serve as these. */
  private def other(header: Header): Schema = {
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

  private def release(): Unit = if (reading != null) {
    reading.clear()
    reading = null
  }

  private def close(): Unit = if (!closed) {
    closed = true
    current = Iterator.empty
    // Each step though another one fails: whatever happened, the lane's answers and credits go at once.
    val steps: Seq[() => Unit] = Seq(
      () => answers.foreach(_.bytes.close()),
      () => if (lane != null) lane.close(),
      () => events.foreach(_.close()),
      () => readers.values.foreach(_.close()),
      () => allocator.close())
    val failed = steps.flatMap { step =>
      try { step(); None }
      catch { case e: Exception => Some(e) }
    }
    // A leak of buffers is our mistake and is told, unless there is something worse to tell.
    if (failed.nonEmpty && !context.isFailed() && !context.isInterrupted()) throw failed.head
  }
}
