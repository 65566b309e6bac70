package org.apache.spark.sql.udo

import scala.collection.immutable.ArraySeq
import scala.collection.mutable

/**
 * The frames under way of an attempt in each slot, as SplitExchange in udo_interface/lane/split.py. A keyed attempt's events go to the slots of
 * their key groups, and END to all slots, so that an epoch counts in every slot or in none. When groups move meanwhile, a slot that has
 * lost some refuses the first frame that was split by the older map; its rows are split again by the newer map and sent before anything
 * else, so that no event of a key overtakes an earlier one.
 */
private[udo] final class Slots(lanes: Lanes, of: Attempt, counters: Counters, check: (Lane, Frame) => Unit) {
  private val underWay = mutable.ArrayBuffer.fill(lanes.size)(mutable.ArrayDeque.empty[Part])
  private val copies = mutable.ArrayBuffer.empty[Events]
  private var places = lanes.opened.groupSlots
  private var mapVersion = 0L // of the newest group map that a slot has sent
  private var rerouted = 0 // how often refused frames were sent anew
  private var ends: Option[Ends] = None

  /** The ENDs of the attempt: the key groups that no END sent so far names, and the slots that no END was sent to. */
  private final class Ends(val item: Item, val void: Boolean, val highest: Map[String, Long]) {
    var groups: Seq[Int] = of.keyed.toSeq.flatMap(_.groups)
    var slots: Seq[Int] = 0 until lanes.size
  }

  /** The number of slots that events may go to. */
  def size: Int = lanes.size

  /** The slot of that key group. */
  def place(group: Int): Int = if (places.isEmpty) 0 else places(group % places.length)

  /** Send the pieces of a batch. When groups move meanwhile, the events not yet sent are split anew. */
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

  /** Send a piece as one frame, or in halves if that is too large; return how many events were sent: not all if groups moved. */
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
          // The slice of a part of the events is released after this block, so its push must be settled first.
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

  /** Split a piece by the slots of its groups; a piece for a single slot is not copied. */
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

  /** Read the outcome of the slot's last push; if it was refused, reroute its rows and read again. */
  private def settle(slot: Int): Unit = {
    var refused = lanes(slot).settle()
    while (refused.nonEmpty) {
      reroute(slot, refused.get)
      refused = lanes(slot).settle()
    }
    underWay(slot).lastOption.foreach(_.piece = None)
  }

  /** Settle until no frame of these events is left that a slot may still refuse: then their buffers may be used again. */
  def settle(events: Iterable[Events]): Unit = {
    var slot = 0
    while (slot < lanes.size && copies.isEmpty) {
      if (underWay(slot).lastOption.exists(_.piece.exists(p => events.exists(_ eq p.events)))) {
        settle(slot)
        slot = 0 // refused events may have gone to another slot
      } else slot += 1
    }
    if (copies.nonEmpty) settleAll()
  }

  /** Settle all slots, until no frame is left that a slot may still refuse. */
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
   * Send the rows or groups of the slot's last frame, which it refused since groups have moved, by the newer map. Before anything is sent
   * by the newer map, every frame sent by the older one is known to be accepted or refused: else a later event of a key could go to the new
   * slot before the former slot refuses an earlier one.
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

  /** Take back the part that the slot has refused. */
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

  /** Wait until nothing is under way: frames that a slot refuses since groups moved go to another one, which may have answered all else. */
  def awaitAll(): Unit = Iterator.continually(underWay.indexWhere(_.nonEmpty)).takeWhile(_ >= 0).foreach(await)

  // -- the end ---------------------------------------------------------------------------------------------------------

  /** Send END to all slots; `void`: the attempt is to leave no trace. */
  def end(item: Item, void: Boolean): Unit = {
    if (lanes.opened.timed && !void) awaitAll()
    settleAll()
    val e = new Ends(item, void, if (void) Map.empty else Lane.combined(lanes.all.map(_.seen)))
    ends = Some(e)
    pushEnds(e)
    item.sent = true
  }

  /** Send END to each slot that has had none, and to the slots of groups that no END has named. */
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

  /** Release the copies of events that are still held. */
  def close(): Unit = {
    copies.foreach(_.close())
    copies.clear()
  }
}
