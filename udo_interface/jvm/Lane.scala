package org.apache.spark.sql.udo

import java.util.concurrent.TimeUnit

import org.apache.arrow.memory.{ArrowBuf, BufferAllocator}

/**
 * A lane over one slot, as udo_interface/lane.py: frames go out numbered, up to a window ahead of their answers, which come back in
 * order. It never reorders, repeats or drops a frame; whatever does not fit raises, saying where.
 */
private[udo] final class Lane(opened: Opened, connection: Connection, schemaId: Array[Byte]) {
  import Lane._

  val place: Place = opened.place
  private val end = new LaneEnd(connection, opened.prefix, opened.lane, opened.bounds, opened.route)
  private val patience = new ProgressDeadline(end, place, opened.bounds.answerTimeoutMs)
  private var unsettled: Payload = _
  private var sent = 0L
  private var answered = 0L
  private var dropped = 0L
  private val early = collection.mutable.Map.empty[Long, Frame] // no more than there are frames under way
  private var lanes = 1L
  private var counted = Option.empty[Long]

  def open(schema: Array[Byte]): Unit = end.open(schemaId, schema)

  /** Frames sent and not yet answered. */
  def pending: Int = (sent - answered).toInt

  /** Whether another frame may be sent before the next answer has come. */
  def mayPush(): Boolean = {
    val window = opened.window
    pending < math.min(window, LeastShare) || pending < share(window)
  }

  /** Of the window, how many frames may be under way: all while the lane is alone in its slot, else its fair part. */
  private def share(window: Int): Int = {
    val now = System.nanoTime()
    if (counted.forall(now - _ > ShareLookNs)) {
      settle()
      lanes = end.lanes()
      counted = Some(now)
    }
    if (lanes <= 1) window else math.min(window, math.max(LeastShare, opened.bounds.windowFrames / lanes.toInt))
  }

  /** The next frame of this attempt, of these events. */
  def frame(rows: Int, of: Attempt, events: Payload): Payload =
    Frame.data(opened.lane, sent + 1, rows, schemaId, of.partition, of.session, events)

  /** Bytes that a frame may have. */
  def frameBytes: Long = opened.bounds.frameBytes

  /** Send a frame; its outcome is read by `settle`, and its buffers must live until then. */
  def push(frame: Payload): Unit = {
    settle()
    if (pending == 0) patience.progress()
    sent += 1
    end.push(sent, frame)
    unsettled = frame
  }

  /** Read the outcome of the last push; waits while the log is full, and pushes again when the route has changed. */
  def settle(): Unit = if (unsettled != null) {
    val frame = unsettled
    unsettled = null
    var reply = end.reply()
    if (reply.status == "BUSY" || reply.status == "MOVED") reply = again(reply, frame)
    reply.status match {
      case "ACCEPTED" =>
      case "EXPIRED" => throw end.gone(s"$place: ")
      case other => throw UdoException.protocol(s"$place: frame $sent of lane ${opened.lane} was refused: $other ${said(reply.value)}")
    }
  }

  private def again(first: Pushed, frame: Payload): Pushed = {
    val backoff = new LinearBackoff(BusyIncrementUs, BusyCeilingUs)
    val waiting = new ProgressDeadline(end, place, opened.bounds.answerTimeoutMs)
    var reply = first
    while (reply.status == "BUSY" || reply.status == "MOVED") {
      if (reply.status == "BUSY") {
        waiting.check(s"room for frame $sent (${said(reply.value)} bytes retained)")
        backoff.pause()
      } else if (!end.follow(reply)) {
        waiting.check(s"the slot to take frame $sent by version ${end.route} of the route")
        awaitRoute()
      }
      end.push(sent, frame)
      reply = end.reply()
    }
    reply
  }

  /** Until the slot takes frames by the version in use here; for a while. */
  private def awaitRoute(): Unit = {
    val backoff = new LinearBackoff(MovedIncrementUs, MovedCeilingUs)
    var looks = 0
    do {
      backoff.pause()
      looks += 1
    } while (looks < MovedLooks && end.acceptsBy() < end.route)
  }

  /** Sleep until answers come, or for a second; those to the next frames, in order. The caller closes their bytes. */
  def collect(): Seq[Frame] = {
    settle()
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
    if (header.number <= answered || early.contains(header.number)) {
      dropped += 1
      answer.bytes.close()
    } else early(header.number) = answer
  }

  /** Raise what an answer reports, unless the frame was processed. */
  def check(header: Header): Unit = header.kind match {
    case Frame.Answer =>
    case Frame.Error => throw failed(header)
    case Frame.Stale =>
      throw UdoException.byCode("stale", s"$place: a newer attempt at this epoch was processed; the answers of this one do not count")
    case _ =>
      throw UdoException.byCode("operator", s"$place did not process frame ${header.number}: an earlier frame of this attempt failed")
  }

  private def failed(header: Header): UdoException = {
    val failure = header.failure.getOrElse(Failure("", "", "", "", ""))
    val version = header.version.drop(header.version.lastIndexOf('@') + 1)
    val where = if (header.version.contains('@') && version.nonEmpty) place.copy(version = version) else place
    val text = new StringBuilder(failure.message) // what its author and its caller can do something about; where it was comes last
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
      throw UdoException.protocol(s"$place answered with a malformed frame: it names a schema that is not registered on ${opened.prefix}")
    found
  }

  /** Close the lane; the outcome of the last push does not matter any more. */
  def close(): Unit = {
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
    } finally connection.close()
  }

  private def said(value: Any): String = value match {
    case null => ""
    case b: Array[Byte] => new String(b, java.nio.charset.StandardCharsets.UTF_8)
    case other => other.toString
  }
}

private[udo] object Lane {
  // As in udo_interface/lane.py.
  private val LeastShare = 2
  private val ShareLookNs = TimeUnit.MILLISECONDS.toNanos(250)
  private val BusyIncrementUs = 500L
  private val BusyCeilingUs = 20000L
  private val MovedIncrementUs = 200L
  private val MovedCeilingUs = 1000L
  private val MovedLooks = 20
  // A killed queue server is replaced within a second or so.
  private val ReplacedIncrementUs = 20000L
  private val ReplacedCeilingUs = 500000L
  private val OpenWaitS = 30L

  /** Ask for a lane, connect and register it. While a lost queue server is being replaced it asks again: nothing was sent so far. */
  def open(call: Call, of: Attempt, allocator: BufferAllocator): Lane = {
    val backoff = new LinearBackoff(ReplacedIncrementUs, ReplacedCeilingUs)
    val deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(OpenWaitS)
    while (true) {
      try {
        val opened = Opened.ask(call, of)
        val connection = new Connection(opened.queue, opened.user, opened.password, opened.runId, allocator)
        val lane = new Lane(opened, connection, call.inputId.toArray)
        try {
          lane.open(call.input.toArray)
          return lane
        } catch {
          case e: Throwable => lane.close(); throw e
        }
      } catch {
        case e: UdoException if e.kind == "ServerLost" =>
          if (System.nanoTime() > deadline)
            throw UdoException.serverLost(
              s"deployment ${call.deployment}: ${e.getMessage}; it was not replaced within $OpenWaitS s")
      }
      backoff.pause()
    }
    throw new IllegalStateException
  }
}
