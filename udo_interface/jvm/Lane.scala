package org.apache.spark.sql.udo

import java.util.concurrent.TimeUnit

import org.apache.arrow.memory.ArrowBuf

import org.apache.spark.TaskKilledException

/**
 * A lane over one slot, as udo_interface/lane/lane.py: frames go out numbered, up to a window ahead of their answers, which come back in
 * order. It never reorders, repeats or drops a frame; any mismatch raises, naming the place. A keyed attempt's frames are handed
 * back if the slot refuses them because key groups have moved.
 */
private[udo] final class Lane(slot: SlotAddress, opened: Opened, of: Attempt, connection: Connection, schemaId: Array[Byte])
    extends AutoCloseable {
  import Lane._

  val place: Place = slot.place
  private val end = new LaneEnd(
    connection, slot, opened.lane, opened.bounds, if (opened.stamp.isEmpty) "" else s"${of.session}:${of.partition}",
    opened.stamp.fold("")(_.order))
  private val patience = new ProgressDeadline(end, place, opened.bounds.answerTimeoutMs)
  private var unsettled: Sent = _
  private var sent = 0L
  private var answered = 0L
  private val early = collection.mutable.Map.empty[Long, Frame] // at most as many as there are frames under way
  private var lanes = 1L
  private var counted = Option.empty[Long]
  private var highest = Map.empty[String, Long]

  /** The slot, as group maps name it. */
  def name: String = slot.name

  /** The highest event times in the answers so far. */
  def seen: Map[String, Long] = highest

  /** Send all further frames by this version of the slot's route, if it is newer. */
  def goBy(version: Long): Unit = if (version > end.route) end.route = version

  def open(schema: Array[Byte]): Unit = end.open(schemaId, schema)

  /** Frames sent and not yet answered. */
  def pending: Int = (sent - answered).toInt

  /** Whether the lanes of the slot are to be counted before `mayPush`, which takes the connection. */
  def mustCount: Boolean =
    pending >= math.min(opened.window, LeastShare) && counted.forall(System.nanoTime() - _ > ShareLookNs)

  /** Count the lanes of the slot. The last push must be settled. */
  def count(): Unit = {
    lanes = end.lanes()
    counted = Some(System.nanoTime())
  }

  /** Whether another frame may be sent before the next answer has come. */
  def mayPush: Boolean = {
    val window = opened.window
    pending < math.min(window, LeastShare) || pending < share(window)
  }

  /** The number of frames of the window that may be under way: all while the lane is alone in its slot, else its fair part. */
  private def share(window: Int): Int =
    if (lanes <= 1) window else math.min(window, math.max(LeastShare, opened.bounds.windowFrames / lanes.toInt))

  /** The next frame, of these events. */
  def frame(rows: Int, events: Payload): Payload = Frame.data(opened.lane, sent + 1, of, opened.stamp, rows, schemaId, events)

  /** The most bytes that a frame may have. */
  def frameBytes: Long = opened.bounds.frameBytes

  /** Send a frame; its outcome is read by `settle`, and its buffers must live until then. The last push must be settled. */
  def push(frame: Payload): Unit = push(frame, control = false)

  /** Send END for these key groups: all events are sent, with these highest event times. `void`: the attempt is to leave no trace. */
  def pushEnd(groups: Seq[Int], void: Boolean, highest: Map[String, Long]): Unit =
    push(Frame.end(opened.lane, sent + 1, of, opened.stamp, groups, void, highest), control = true)

  private def push(frame: Payload, control: Boolean): Unit = {
    if (pending == 0) patience.progress()
    sent += 1
    end.push(sent, frame, control, end.route)
    unsettled = Sent(frame, control, end.route)
  }

  /**
   * Read the outcome of the last push; waits while the log is full, and pushes again when the route has changed. If a keyed attempt's frame
   * was refused because key groups have moved, return the route by which they moved; the frame's number is free again.
   */
  def settle(): Option[Route] = if (unsettled == null) None else {
    val last = unsettled
    unsettled = null
    var reply = end.reply()
    if (reply.status == "BUSY" || reply.status == "MOVED") {
      val backoff = new LinearBackoff(BusyIncrementUs, BusyCeilingUs)
      val waiting = new ProgressDeadline(end, place, opened.bounds.answerTimeoutMs)
      while (reply.status == "BUSY" || reply.status == "MOVED") {
        if (reply.status == "BUSY") {
          waiting.check(s"room for frame $sent (${said(reply.value)} bytes retained)")
          backoff.pause()
        } else if (splits) {
          end.newer(reply, last.by).foreach { route =>
            sent -= 1
            return Some(route)
          }
          awaitRoute(waiting, last.by)
        } else if (!end.follow(reply)) awaitRoute(waiting, end.route)
        end.push(sent, last.frame, last.control, if (splits) last.by else end.route)
        reply = end.reply()
      }
    }
    reply.status match {
      case "ACCEPTED" => None
      case "EXPIRED" => throw end.gone(s"$place: ")
      case "STALE" =>
        throw UdoException.byCode("stale", s"$place: a newer attempt at this epoch is known (${said(reply.value)}); this one gives up$Twice")
      case other => throw UdoException.protocol(s"$place: frame $sent of lane ${opened.lane} was refused: $other ${said(reply.value)}")
    }
  }

  private def splits = opened.stamp.nonEmpty

  /** Wait until the slot takes frames by this version, for a bounded number of looks. */
  private def awaitRoute(waiting: ProgressDeadline, version: Long): Unit = {
    waiting.check(s"the slot to take frame $sent by version ${end.route} of the route")
    val backoff = new LinearBackoff(MovedIncrementUs, MovedCeilingUs)
    var looks = 0
    do {
      backoff.pause()
      looks += 1
    } while (looks < MovedLooks && end.acceptsBy() < version)
  }

  /**
   * Sleep until answers come, or for a second; return those to the next frames, in order. The caller passes each to `check`, and closes its
   * bytes. The last push must be settled.
   */
  def collect(): Seq[Frame] = {
    val found = taken(end.collect(ProgressDeadline.LookMs))
    if (found.nonEmpty) patience.progress()
    else {
      patience.look()
      patience.check(s"the answer to frame ${answered + 1}")
    }
    found
  }

  private def taken(came: Seq[ArrowBuf]): Seq[Frame] = {
    var done = 0
    try came.foreach { bytes =>
      keep(Frame.decode(bytes))
      done += 1
    } catch {
      case e: UdoException =>
        came.drop(done).foreach(_.close())
        throw new UdoException(e.kind, s"$place answered with a malformed frame: ${e.getMessage}")
    }
    val found = Seq.newBuilder[Frame]
    while (early.contains(answered + 1)) {
      answered += 1
      found += early.remove(answered).get
    }
    found.result()
  }

  private def keep(answer: Frame): Unit = {
    val header = answer.header
    def stray(of: String) = UdoException.byCode("stray_answer", s"lane ${opened.lane} was given the answer to frame ${header.number}$of")
    if (header.lane != opened.lane) throw stray(s" of lane ${header.lane.take(200)}")
    if (header.number < 1 || header.number > sent) throw stray(s"; it has sent $sent")
    if (header.number <= answered || early.contains(header.number)) answer.bytes.close()
    else early(header.number) = answer
  }

  /** Raise the error that an answer reports, unless its frame was processed. */
  def check(header: Header): Unit = header.kind match {
    case Frame.Answer => if (opened.timed) highest = Lane.combined(Seq(highest, header.highest))
    case Frame.Error => throw failed(header)
    case Frame.Stale =>
      throw UdoException.byCode("stale", s"$place: a newer attempt at this epoch was processed; the answers of this one do not count$Twice")
    case _ =>
      throw UdoException.byCode("operator", s"$place did not process frame ${header.number}: an earlier frame of this attempt failed")
  }

  private def failed(header: Header): UdoException = {
    val failure = header.failure.getOrElse(Failure("", "", "", "", ""))
    val version = header.version.drop(header.version.lastIndexOf('@') + 1)
    val where = if (header.version.contains('@') && version.nonEmpty) place.copy(version = version) else place
    val text = new StringBuilder(failure.message) // first the part that the operator's author and caller can act on; the place comes last
    if (failure.event.nonEmpty) text.append(s"\nThe offending event: ${failure.event}")
    if (failure.traceback.nonEmpty) text.append(s"\nThe operator's traceback:\n${failure.traceback.stripTrailing()}")
    text.append(s"\nFrom $where, frame ${header.number}")
    if (failure.instance.nonEmpty) text.append(s", instance ${failure.instance}")
    UdoException.byCode(if (failure.code.isEmpty) "operator" else failure.code, text.toString)
  }

  /** The schema message that an answer names. */
  def schema(id: Seq[Byte]): Array[Byte] = {
    val found = end.schema(id.toArray)
    if (found == null)
      throw UdoException.protocol(s"$place answered with a malformed frame: it names a schema that is not registered on ${slot.prefix}")
    found
  }

  /** Close the lane; the outcome of the last push does not matter any more. */
  override def close(): Unit = {
    early.values.foreach(_.bytes.close())
    early.clear()
    try {
      if (unsettled != null) {
        unsettled = null
        end.reply()
      }
      end.close()
    } catch {
      case _: UdoException | _: java.io.IOException | _: java.nio.channels.ClosedSelectorException => // it ends with its connection
      case _: TaskKilledException | _: InterruptedException => // so it does when the task is killed: nobody waits for the reply
    } finally connection.close()
  }

  private def said(value: Any): String = value match {
    case null => ""
    case b: Array[Byte] => new String(b, java.nio.charset.StandardCharsets.UTF_8)
    case other => other.toString
  }
}

private[udo] object Lane {
  // The values of udo_interface/lane/lane.py.
  private val LeastShare = 2
  private val ShareLookNs = TimeUnit.MILLISECONDS.toNanos(250)
  private val BusyIncrementUs = 500L
  private val BusyCeilingUs = 20000L
  private val MovedIncrementUs = 200L
  private val MovedCeilingUs = 1000L
  private val MovedLooks = 20
  // Spark itself starts a newer attempt only after an older one has failed. Any other newer attempt is a second evaluation of the call.
  private val Twice =
    ". If Spark has not tried this task again, the call is evaluated twice at once, by two branches of a plan or two threads: persist() " +
      "its DataFrame in foreachBatch before both use it, or, if each is to have a state of its own, call the operator twice, with uid= each"

  /** A frame whose push is not settled; `by`: the version of the route that it went by. */
  private final case class Sent(frame: Payload, control: Boolean, by: Long)

  /** The highest event time of each input. */
  def combined(times: Seq[Map[String, Long]]): Map[String, Long] = times.flatten.groupMapReduce(_._1)(_._2)(math.max)
}
