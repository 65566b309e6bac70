package org.apache.spark.sql.udo

import scala.collection.mutable

import org.apache.spark.TaskContext
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.types.DataType

/**
 * The rows of a source that makes its reader wait for the next event (real-time mode). A thread reads them ahead, as many as a frame may
 * hold, so that the task can hand out answers meanwhile.
 */
private[udo] final class Ahead(rows: Iterator[InternalRow], types: Seq[DataType], bound: FrameBounds, context: TaskContext)
    extends Iterator[InternalRow] {
  private val come = mutable.Queue.empty[UnsafeRow]
  private var bytes = 0L
  private var ended = false
  private var stopped = false
  private var failure = Option.empty[Throwable]
  private val thread = new Thread(() => read(), s"udo input of task ${context.taskAttemptId()}")

  // The task frees what this thread reads once its listeners are through.
  context.addTaskCompletionListener[Unit](_ => stop())
  thread.setDaemon(true)
  thread.start()

  /** Whether `hasNext` returns at once. */
  def ready: Boolean = synchronized(come.nonEmpty || ended)

  override def hasNext: Boolean = synchronized {
    while (come.isEmpty && !ended) {
      context.killTaskIfInterrupted() // unless told to, Spark does not interrupt the thread
      wait(Ahead.LookMs)
    }
    if (come.isEmpty) failure.foreach(throw _)
    come.nonEmpty
  }

  override def next(): InternalRow = synchronized {
    if (!hasNext) throw new NoSuchElementException
    val row = come.dequeue()
    bytes -= row.getSizeInBytes
    notifyAll()
    row
  }

  private def read(): Unit = {
    TaskContext.setTaskContext(context)
    try {
      val unsafe = UnsafeProjection.create(types.toArray)
      while (room() && rows.hasNext) add(unsafe(rows.next()).copy())
    } catch {
      case e: Throwable => synchronized { failure = Some(e) }
    } finally {
      TaskContext.unset()
      synchronized {
        ended = true
        notifyAll()
      }
    }
  }

  /** Wait until there is room for a row; false if the task has ended. */
  private def room(): Boolean = synchronized {
    while (!stopped && (come.size >= bound.rows || come.nonEmpty && bytes >= bound.bytes)) wait()
    !stopped
  }

  private def add(row: UnsafeRow): Unit = synchronized {
    come += row
    bytes += row.getSizeInBytes
    notifyAll()
  }

  private def stop(): Unit = {
    synchronized {
      stopped = true
      notifyAll()
    }
    while (thread.isAlive) {
      thread.interrupt()
      thread.join(Ahead.LookMs)
    }
  }
}

private[udo] object Ahead {
  private val LookMs = 100L
}
