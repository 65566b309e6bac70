package org.apache.spark.sql.udo

import java.util.concurrent.locks.ReentrantLock

/**
 * Keeps buffers from being freed while they are read or written. Some nodes of Spark read their input in a thread of their own (TRANSFORM,
 * pipes), which may still be at it when the task ends; then that thread frees the buffers as it leaves them.
 */
private[udo] final class InUse(free: () => Unit) {
  private val lock = new ReentrantLock
  @volatile private var over = false
  private var freed = false

  /** Run a step that uses the buffers; IllegalStateException once they may be freed. */
  def apply[T](step: => T): T = {
    lock.lock()
    try {
      if (over) throw new IllegalStateException("the task has ended")
      step
    } finally {
      lock.unlock()
      if (over) end()
    }
  }

  /** Free the buffers, once, or have the thread free them that uses them now. */
  def end(): Unit = {
    over = true
    if (lock.tryLock())
      try if (!freed) {
        freed = true
        free()
      } finally lock.unlock()
  }
}
