package org.apache.spark.sql.udo

import java.io.ByteArrayOutputStream
import java.nio.{ByteBuffer, ByteOrder}
import java.nio.charset.StandardCharsets.UTF_8

import org.apache.arrow.memory.ArrowBuf
import org.sparkproject.spark_core.protobuf.{CodedOutputStream, InvalidProtocolBufferException, UnknownFieldSet}

/** What an instance says of a frame that it failed on, cut to what may be shown. */
private[udo] final case class Failure(code: String, message: String, traceback: String, event: String, instance: String)

/** The header of an answer: the fields that a stateless lane needs. */
private[udo] final case class Header(
    lane: String,
    number: Long,
    kind: Int,
    rows: Long,
    schema: Seq[Byte],
    version: String,
    failure: Option[Failure])

/** One answer; the caller closes `bytes`. Its events begin at `start` and are `size` bytes, 0: there are none. */
private[udo] final case class Frame(header: Header, bytes: ArrowBuf, start: Long, size: Int)

/** Wire form of a frame (docs/protocol.md, "Frame"). Only the header's Protobuf is parsed by a library of Spark's own. */
private[udo] object Frame {
  val Data = 1
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

  /** A DATA frame of these events, whose `pieces` are one Arrow message. */
  def data(lane: String, number: Long, rows: Int, schema: Array[Byte], partition: Int, session: String, events: Payload): Payload = {
    val made = new ByteArrayOutputStream(256)
    val out = CodedOutputStream.newInstance(made)
    out.writeString(1, lane)
    out.writeUInt64(2, number)
    out.writeEnum(3, Data)
    out.writeUInt32(4, rows)
    out.writeByteArray(5, schema)
    out.writeUInt32(7, partition)
    out.writeString(8, session)
    out.flush()
    val header = made.toByteArray
    val start = ByteBuffer.allocate(PrefixBytes + padded(header.length)).order(ByteOrder.LITTLE_ENDIAN)
    start.put(Magic).putShort(Version.toShort).putShort(0.toShort).putInt(header.length).putInt(events.size.toInt).put(header)
    start.clear()
    Payload(start +: events.pieces)
  }

  /** The answer in these bytes; a protocol error says what was expected and what came. */
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
      Header(text(set, 1), number(set, 2), number(set, 3).toInt, number(set, 4), raw(set, 5).toSeq, text(set, 10), failure)
    } catch {
      case e: InvalidProtocolBufferException =>
        throw UdoException.protocol(s"frame header of ${bytes.length} bytes is not a FrameHeader: ${e.getMessage}")
    }

  private def failed(set: UnknownFieldSet): Failure = {
    def bounded(field: Int, most: Int) = UdoException.cut(text(set, field), most)
    Failure(bounded(1, EventChars), bounded(2, MessageChars), bounded(3, TracebackChars), bounded(4, EventChars), bounded(7, EventChars))
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
