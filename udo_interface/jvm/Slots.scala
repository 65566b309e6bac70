package org.apache.spark.sql.udo

import scala.collection.immutable.ArraySeq
import scala.collection.mutable

/**
 * What an attempt has under way in each slot, as SplitExchange in udo_interface/split.py. A keyed attempt's events go to the slots of their
 * key groups, and END to all of them, so that an epoch counts in every slot or in none. When groups move meanwhile, a slot that has lost
 * some refuses the first frame that was split by the older map; its rows are split again by the newer one and sent before anything
 * else, so that no event of a key overtakes an earlier one.
 */
private[udo] final class Slots(lanes: Lanes, of: Attempt, counters: Counters, check: (Lane, Frame) => Unit) {
  private val underWay = mutable.ArrayBuffer.fill(lanes.size)(mutable.ArrayDeque.empty[Part])
  private val copies = mutable.ArrayBuffer.empty[Events]
  private var places = lanes.opened.groupSlots
  private var mapVersion = 0L // of the newest map that a slot has told of
  private var rerouted = 0 // frames
  private var ends: Option[Ends] = None

  /** The ENDs of the attempt: key groups that no slot has been sent yet, and the slots that have not been sent any. */
  private final class Ends(val item: Item, val void: Boolean, val highest: Map[String, Long]) {
    var groups: Seq[Int] = of.keyed.toSeq.flatMap(_.groups)
    var slots: Seq[Int] = 0 until lanes.size
  }

  /** How many slots events may go to. */
  def size: Int = lanes.size

  /** The slot of that key group. */
  def place(group: Int): Int = if (places.isEmpty) 0 else places(group % places.length)

  /** Send the pieces of a batch. When groups move meanwhile, what is left is split anew. */
  def send(item: Item, pieces: Seq[Piece]): Unit = {
    push(item, pieces)
    item.sent = true
  }

  private def push(item: Item, pieces: Seq[Piece]): Unit = {
    val left = mutable.Queue.from(pieces)
    while (left.nonEmpty) {
      val (piece, before) = (left.dequeue(), rerouted)
      val pushed = pushFrames(item, piece)
      if (rerouted != before) {
        val rest = piece.drop(pushed) +: left.toSeq
        left.clear()
        left ++= rest.filter(_.size > 0).flatMap(split)
      }
    }
  }

  /** Send a piece as one frame, or in halves if that were too large; how many events were sent when groups moved, else all. */
  private def pushFrames(item: Item, piece: Piece): Int = {
    val (before, lane) = (rerouted, lanes(piece.slot))
    val left = mutable.Stack(piece)
    var sent = 0
    while (left.nonEmpty) {
      settle(piece.slot)
      if (rerouted != before) return sent
      val some = left.pop()
      val tooLarge = some.events.message(some.at, some.size) { message =>
        val frame = lane.frame(some.size, message)
        if (frame.size <= lane.frameBytes) {
          underWay(piece.slot) += new Part(item, piece.slot, some.rows, Some(some), None)
          item.parts += underWay(piece.slot).last
          lane.push(frame)
          sent += some.size
          counters.frames += 1
          counters.bytesSent += frame.size
          // A part of the events lies in buffers of its own only until here.
          if (some.size < some.events.rows) settle(piece.slot)
          0L
        } else frame.size
      }
      if (tooLarge > 0) {
        if (some.size == 1)
          throw UdoException.byCode(
            "usage", s"${lane.place}: one event takes $tooLarge bytes; the bound is ${lane.frameBytes} (limit frame_bytes of the deployment)")
        left.push(some.drop(some.size / 2))
        left.push(some.take(some.size / 2))
      } else while (rerouted == before && !mayPush(piece.slot)) await(piece.slot)
      if (rerouted != before) return sent
    }
    sent
  }

  private def mayPush(slot: Int): Boolean = {
    if (lanes(slot).mustCount) {
      settle(slot)
      lanes(slot).count()
    }
    lanes(slot).mayPush
  }

  /** The piece by the slots of its groups; one that goes to a single slot stays as it lies. */
  private def split(piece: Piece): Seq[Piece] = {
    val slots = ArraySeq.tabulate(piece.size)(i => place(piece.events.group(piece.at + i)))
    slots.distinct match {
      case Seq(slot) => Seq(piece.copy(slot = slot))
      case several =>
        several.sorted.map { slot =>
          val mine = slots.indices.filter(slots(_) == slot)
          copies += piece.events.taken(mine.map(piece.at + _))
          Piece(slot, ArraySeq.from(mine.map(piece.rows)), copies.last, 0)
        }
    }
  }

  // -- groups that move ------------------------------------------------------------------------------------------------

  /** Read the outcome of the slot's last push, and of what is pushed instead if that was refused. */
  private def settle(slot: Int): Unit = {
    var refused = lanes(slot).settle()
    while (refused.nonEmpty) {
      reroute(slot, refused.get)
      refused = lanes(slot).settle()
    }
    underWay(slot).lastOption.foreach(_.piece = None)
  }

  /** No frame of these events is left that a slot may still refuse: their buffers may be used again. */
  def settle(events: Iterable[Events]): Unit = {
    var slot = 0
    while (slot < lanes.size && copies.isEmpty) {
      if (underWay(slot).lastOption.exists(_.piece.exists(p => events.exists(_ eq p.events)))) {
        settle(slot)
        slot = 0 // it may have been sent to another one
      } else slot += 1
    }
    if (copies.nonEmpty) settleAll()
  }

  /** No frame is left that a slot may still refuse. */
  private def settleAll(): Unit = {
    var before = -1
    while (before != rerouted) {
      before = rerouted
      var slot = 0
      while (slot < lanes.size) {
        settle(slot)
        slot += 1
      }
    }
    copies.foreach(_.close())
    copies.clear()
  }

  /**
   * The slot's last frame was refused, since groups have moved: send its rows or groups by the newer map. Before anything is sent by that,
   * all that was sent by the older one is accepted or known to be refused: else a later event of a key could go to the new slot while an
   * earlier one comes back from the former.
   */
  private def reroute(slot: Int, route: Route): Unit = {
    val refused = mutable.ArrayBuffer(withdrawn(slot, route))
    var other = 0
    while (other < lanes.size) {
      lanes(other).settle().foreach(newer => refused += withdrawn(other, newer))
      other += 1
    }
    rerouted += 1
    refused.foreach(part => part.piece.foreach(piece => push(part.item, split(piece))))
    ends.foreach { e =>
      refused.foreach { part =>
        part.ends.foreach { groups =>
          e.groups ++= groups
          e.slots :+= part.slot
        }
      }
      pushEnds(e)
    }
  }

  /** What the slot has refused. */
  private def withdrawn(slot: Int, route: Route): Part = {
    follow(route)
    val part = underWay(slot).removeLast()
    part.item.parts -= part
    part
  }

  /** Take a newer group map; a slot without a lane is given one. */
  private def follow(route: Route): Unit = {
    if (route.groups.isEmpty)
      throw UdoException.protocol(s"${lanes(0).place}: its slots have a newer route ${route.version}, without a group map")
    if (route.mapVersion > mapVersion) {
      val known = mutable.Map.from(lanes.all.zipWithIndex.map { case (lane, at) => lane.name -> at })
      route.slots.filterNot(known.contains).foreach { slot =>
        lanes.open(slot)
        known(slot) = lanes.size - 1
        underWay += mutable.ArrayDeque.empty
        ends.foreach(e => e.slots :+= lanes.size - 1)
      }
      places = route.groups.map(at => known(route.slots(at)))
      mapVersion = route.mapVersion
      route.slots.zip(route.versions).foreach { case (slot, version) => lanes(known(slot)).goBy(version) }
    }
  }

  // -- answers ---------------------------------------------------------------------------------------------------------

  /** Wait for the slot's next answers, if it owes any. */
  def await(slot: Int): Unit = {
    settle(slot)
    if (underWay(slot).nonEmpty) {
      val started = System.nanoTime()
      val found =
        try lanes(slot).collect()
        finally counters.waitedNs += System.nanoTime() - started
      found.foreach { answer =>
        val part = underWay(slot).removeHead()
        part.answer = answer
        part.item.answered += 1
      }
      found.foreach(check(lanes(slot), _))
    }
  }

  /** Wait until nothing is under way. */
  def awaitAll(): Unit = {
    var slot = 0
    while (slot < lanes.size) {
      settle(slot)
      if (underWay(slot).isEmpty) slot += 1 else await(slot)
    }
  }

  // -- the end ---------------------------------------------------------------------------------------------------------

  /** END to all slots; `void`: the attempt is to leave no trace. */
  def end(item: Item, void: Boolean): Unit = {
    if (lanes.opened.timed && !void) awaitAll()
    settleAll()
    val e = new Ends(item, void, if (void) Map.empty else Lane.combined(lanes.all.map(_.seen)))
    ends = Some(e)
    pushEnds(e)
    item.sent = true
  }

  /** END to each slot that has not had one, and to those of groups that have not been named. */
  private def pushEnds(e: Ends): Unit =
    while (e.slots.nonEmpty || e.groups.nonEmpty) {
      val slot = e.slots.headOption.getOrElse(place(e.groups.head))
      e.slots = e.slots.drop(1)
      settle(slot)
      val (here, others) = e.groups.partition(place(_) == slot)
      e.groups = others
      underWay(slot) += new Part(e.item, slot, IndexedSeq.empty, None, Some(here))
      e.item.parts += underWay(slot).last
      lanes(slot).pushEnd(here, e.void, e.highest)
    }

  /** Give up what has not been answered. */
  def close(): Unit = {
    copies.foreach(_.close())
    copies.clear()
  }
}
