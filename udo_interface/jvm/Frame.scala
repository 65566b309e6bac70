package org.apache.spark.sql.udo

import java.io.ByteArrayOutputStream
import java.nio.{ByteBuffer, ByteOrder}
import java.nio.charset.StandardCharsets.UTF_8

import scala.jdk.CollectionConverters._

import org.apache.arrow.memory.ArrowBuf
import org.sparkproject.spark_core.protobuf.{CodedInputStream, CodedOutputStream, InvalidProtocolBufferException, UnknownFieldSet}

/** An instance's report of a frame that it failed on, cut to the lengths that may be shown. */
private[udo] final case class Failure(code: String, message: String, traceback: String, event: String, instance: String)

/** The header of an answer: the fields that a lane needs. `highest`: event times in microseconds, by input. */
private[udo] final case class Header(
    lane: String,
    number: Long,
    kind: Int,
    rows: Long,
    schema: Seq[Byte],
    version: String,
    failure: Option[Failure],
    highest: Map[String, Long])

/** One answer; the caller closes `bytes`. Its events begin at `start` and take `size` bytes; 0: there are none. */
private[udo] final case class Frame(header: Header, bytes: ArrowBuf, start: Long, size: Int)

/** Wire form of a frame (docs/protocol.md, "Frame"). The header is parsed by the Protobuf library inside Spark's jars. */
private[udo] object Frame {
  private val Data = 1
  private val End = 2
  val Answer = 3
  val Error = 4
  val Stale = 6
  private val Magic = "UDOF".getBytes(UTF_8)
  private val Version = 1
  private val PrefixBytes = 16
  private val HeaderBytes = 1 << 20
  private val MessageChars = 16000
  private val TracebackChars = 32000
  private val EventChars = 2000
  /** The key of the event times of a single input (udo_protocol/queue/event_times.py). */
  private val OnlyInput = "t"
  private val NoEvents = Payload(Nil)

  /** A DATA frame of these events, whose `pieces` are one Arrow message. */
  def data(lane: String, number: Long, of: Attempt, stamp: Option[Stamp], rows: Int, schema: Array[Byte], events: Payload): Payload =
    encode(events) { out =>
      common(out, lane, number, Data, of, stamp)
      out.writeUInt32(4, rows)
      out.writeByteArray(5, schema)
    }

  /** An END frame for these key groups, with the highest event times of the partition; `void`: the attempt is to leave no trace. */
  def end(
      lane: String,
      number: Long,
      of: Attempt,
      stamp: Option[Stamp],
      groups: Seq[Int],
      void: Boolean,
      highest: Map[String, Long]): Payload =
    encode(NoEvents) { out =>
      common(out, lane, number, End, of, stamp)
      groups.foreach(out.writeUInt32(11, _))
      out.writeBool(13, void)
      if (highest.keySet == Set(OnlyInput)) out.writeSInt64(34, highest(OnlyInput))
      else
        highest.foreach { case (input, us) =>
          out.writeByteArray(36, message { entry =>
            entry.writeString(1, input)
            entry.writeSInt64(2, us)
          })
        }
    }

  private def common(out: CodedOutputStream, lane: String, number: Long, kind: Int, of: Attempt, stamp: Option[Stamp]): Unit = {
    out.writeString(1, lane)
    out.writeUInt64(2, number)
    out.writeEnum(3, kind)
    out.writeUInt32(7, of.partition)
    out.writeString(8, of.session)
    stamp.foreach { s =>
      out.writeByteArray(6, message { label =>
        label.writeUInt64(1, s.run)
        label.writeInt64(2, s.epoch)
        label.writeInt64(3, s.attempt)
      })
      out.writeBool(14, s.startEmpty)
      out.writeBool(15, s.job)
      s.since.foreach(out.writeSInt64(18, _))
    }
  }

  private def message(write: CodedOutputStream => Unit): Array[Byte] = {
    val made = new ByteArrayOutputStream(256)
    val out = CodedOutputStream.newInstance(made)
    write(out)
    out.flush()
    made.toByteArray
  }

  private def encode(events: Payload)(write: CodedOutputStream => Unit): Payload = {
    val header = message(write)
    val start = ByteBuffer.allocate(PrefixBytes + padded(header.length)).order(ByteOrder.LITTLE_ENDIAN)
    start.put(Magic).putShort(Version.toShort).putShort(0.toShort).putInt(header.length).putInt(events.size.toInt).put(header)
    start.clear()
    Payload(start +: events.pieces)
  }

  /** The answer in these bytes; a protocol error names the expected and the actual bytes. */
  def decode(bytes: ArrowBuf): Frame = {
    val length = bytes.writerIndex
    if (length < PrefixBytes) throw UdoException.protocol(s"expected a frame of at least $PrefixBytes bytes, got $length: truncated")
    val magic = new Array[Byte](Magic.length)
    bytes.getBytes(0, magic)
    if (!magic.sameElements(Magic)) throw UdoException.protocol(s"expected a frame starting with UDOF, got ${magic.mkString(" ")}")
    val version = bytes.getShort(4)
    if (version != Version)
      throw UdoException.protocol(s"frame of protocol version $version; this side speaks version $Version: upgrade the older side")
    val headerLength = Integer.toUnsignedLong(bytes.getInt(8))
    val size = Integer.toUnsignedLong(bytes.getInt(12))
    if (headerLength > HeaderBytes) throw UdoException.protocol(s"a frame header of $headerLength bytes; the bound is $HeaderBytes")
    val start = PrefixBytes + padded(headerLength.toInt)
    if (length != start + size) throw UdoException.protocol(s"expected a frame of ${start + size} bytes, got $length: truncated or garbled")
    val header = new Array[Byte](headerLength.toInt)
    bytes.getBytes(PrefixBytes.toLong, header)
    Frame(parse(header), bytes, start, size.toInt)
  }

  private def padded(length: Int): Int = (length + 7) / 8 * 8

  private def parse(bytes: Array[Byte]): Header =
    try {
      val set = UnknownFieldSet.parseFrom(bytes)
      val failure = if (set.hasField(12)) Some(failed(UnknownFieldSet.parseFrom(raw(set, 12)))) else None
      Header(
        text(set, 1), number(set, 2), number(set, 3).toInt, number(set, 4), raw(set, 5).toSeq, text(set, 10), failure, highest(set))
    } catch {
      case e: InvalidProtocolBufferException =>
        throw UdoException.protocol(s"frame header of ${bytes.length} bytes is not a FrameHeader: ${e.getMessage}")
    }

  private def failed(set: UnknownFieldSet): Failure = {
    def bounded(field: Int, most: Int) = UdoException.cut(text(set, field), most)
    Failure(bounded(1, EventChars), bounded(2, MessageChars), bounded(3, TracebackChars), bounded(4, EventChars), bounded(7, EventChars))
  }

  private def highest(set: UnknownFieldSet): Map[String, Long] = {
    def signed(of: UnknownFieldSet, field: Int) = CodedInputStream.decodeZigZag64(number(of, field))
    if (set.hasField(34)) Map(OnlyInput -> signed(set, 34))
    else
      set.getField(36).getLengthDelimitedList.asScala.map { bytes =>
        val entry = UnknownFieldSet.parseFrom(bytes)
        text(entry, 1) -> signed(entry, 2)
      }.toMap
  }

  private def number(set: UnknownFieldSet, field: Int): Long = {
    val found = set.getField(field).getVarintList
    if (found.isEmpty) 0L else found.get(found.size - 1)
  }

  private def raw(set: UnknownFieldSet, field: Int): Array[Byte] = {
    val found = set.getField(field).getLengthDelimitedList
    if (found.isEmpty) Array.emptyByteArray else found.get(found.size - 1).toByteArray
  }

  private def text(set: UnknownFieldSet, field: Int): String = new String(raw(set, field), UTF_8)
}
