package org.apache.spark.sql.udo

import java.io.ByteArrayInputStream
import java.nio.{ByteBuffer, ByteOrder}
import java.nio.channels.{Channels, WritableByteChannel}

import scala.collection.mutable.ArrayBuffer
import scala.jdk.CollectionConverters._

import org.apache.arrow.flatbuf.{Message, MessageHeader, RecordBatch}
import org.apache.arrow.vector._
import org.apache.arrow.vector.complex.{MapVector, StructVector}
import org.apache.arrow.vector.ipc.{ReadChannel, WriteChannel}
import org.apache.arrow.vector.ipc.message.{ArrowRecordBatch, MessageSerializer}
import org.apache.arrow.vector.types.pojo.Schema
import org.apache.arrow.vector.validate.{ValidateVectorBufferVisitor, ValidateVectorDataVisitor}

/**
 * Events as Arrow record batch messages. Messages from an operator are not trusted, as in udo_protocol/formats/body.py: first the
 * message's own numbers are checked against its bytes, then every column is validated, and only then is anything handed out.
 */
private[udo] object Body {
  /** The most rows of columns that take no bytes (udo_protocol/limits.py). */
  private val BytelessRows = 1L << 20
  private val Continuation = -1
  private val PrefixBytes = 8

  /** The schema in this Arrow IPC message. */
  def schema(ipc: Array[Byte]): Schema =
    MessageSerializer.deserializeSchema(new ReadChannel(Channels.newChannel(new ByteArrayInputStream(ipc))))

  /** The batch as one message, in pieces that point into the batch's own buffers: to be sent before the batch is closed. */
  def encode(batch: ArrowRecordBatch): Payload = {
    val pieces = new Pieces
    MessageSerializer.serialize(new WriteChannel(pieces), batch)
    Payload(pieces.found.toSeq)
  }

  /** Load the frame's events into `root` by its loader; a protocol error says what is wrong with them. */
  def load(frame: Frame, root: VectorSchemaRoot, loader: VectorLoader): Unit = {
    val rows = frame.header.rows
    if (frame.size == 0) {
      if (rows != 0) throw improper(frame, s"announces $rows rows and has no body")
      root.clear()
      root.setRowCount(0)
      return
    }
    try {
      val body = frame.bytes
      val metadata = if (frame.size > PrefixBytes && body.getInt(frame.start) == Continuation) body.getInt(frame.start + 4) else 0
      if (metadata <= 0 || metadata > frame.size - PrefixBytes)
        throw new IllegalArgumentException(s"expected an Arrow message, got ${frame.size} bytes that do not start like one")
      val start = frame.start + PrefixBytes + metadata
      val size = frame.size - PrefixBytes - metadata
      val message = Message.getRootAsMessage(body.nioBuffer(frame.start + PrefixBytes, metadata).order(ByteOrder.LITTLE_ENDIAN))
      val batch = checked(message, size, rows)
      val buffers = body.slice(start, size)
      val events = MessageSerializer.deserializeRecordBatch(batch, buffers)
      buffers.getReferenceManager.retain() // deserializeRecordBatch releases the caller's own reference
      try loader.load(events)
      finally events.close()
      if (root.getRowCount > 0) {
        root.getFieldVectors.forEach { v =>
          // Not ValueVectorUtility.validateFull, which takes a map's own type for a wrong one.
          v.accept(new ValidateVectorBufferVisitor, null)
          v.accept(Values, null)
          validateValues(v)
        }
      }
    } catch {
      case e: UdoException => throw e
      // Arrow and FlatBuffers raise many kinds of exceptions.
      case e @ (_: RuntimeException | _: java.io.IOException) => throw improper(frame, Option(e.getMessage).getOrElse(e.toString))
    }
  }

  /** The error of a frame whose events are malformed. */
  def improper(frame: Frame, why: String) =
    UdoException.protocol(s"frame ${frame.header.number} of lane ${frame.header.lane}: $why")

  /** The record batch of the message, if nothing lies outside its body, and it does not claim more rows than its bytes can hold. */
  private def checked(message: Message, size: Int, rows: Long): RecordBatch = {
    def refuse(why: String) = throw new IllegalArgumentException(why)
    if (message.headerType != MessageHeader.RecordBatch) refuse("expected a record batch, got an Arrow message of another kind")
    if (message.bodyLength != size)
      refuse(s"expected ${message.bodyLength} bytes behind the Arrow metadata, got $size: truncated or garbled")
    val batch = message.header(new RecordBatch).asInstanceOf[RecordBatch]
    if (batch == null) refuse("expected a record batch, got none")
    if (batch.compression != null) refuse("the record batch is compressed: frames carry uncompressed ones only")
    if (batch.length != rows) refuse(s"the record batch has ${batch.length} rows, its frame announces $rows")
    val most = 8L * size + BytelessRows
    if (rows < 0 || rows > most) refuse(s"$size bytes cannot be $rows rows")
    for (i <- 0 until batch.nodesLength) {
      val node = batch.nodes(i)
      if (node.length < 0 || node.length > most || node.nullCount < 0 || node.nullCount > node.length)
        refuse(s"$size bytes cannot be a column of ${node.length} values, ${node.nullCount} of them null")
    }
    for (i <- 0 until batch.buffersLength) {
      val place = batch.buffers(i)
      if (place.offset < 0 || place.length < 0 || place.offset > size - place.length)
        refuse(s"a column lies outside of $size bytes: ${place.length} bytes at ${place.offset}")
    }
    batch
  }

  /** Arrow's own validation, except for decimals: Arrow refuses those that have all the digits of their type. */
  private object Values extends ValidateVectorDataVisitor {
    override def visit(vector: BaseFixedWidthVector, none: Void): Void = vector match {
      case decimals: DecimalVector =>
        for (row <- 0 until decimals.getValueCount if !decimals.isNull(row))
          if (decimals.getObject(row).precision > decimals.getPrecision)
            throw new IllegalArgumentException(s"column ${decimals.getName}, row $row: a decimal does not fit in precision ${decimals.getPrecision}")
        none
      case _ => super.visit(vector, none)
    }
  }

  /** The check that Arrow's own validation leaves out: every entry of a map has a key. */
  private def validateValues(vector: FieldVector): Unit = {
    vector match {
      case v: MapVector =>
        val entries = v.getDataVector
        if (entries.getNullCount > 0 || entries.asInstanceOf[StructVector].getChildrenFromFields.get(0).getNullCount > 0)
          throw new IllegalArgumentException(s"column ${v.getName}: a map has an entry without a key")
      case _ =>
    }
    vector.getChildrenFromFields.forEach(child => validateValues(child))
  }

  /** Gathers the buffers written: columns without a copy; others are small, and copied since their writer uses the array again. */
  private final class Pieces extends WritableByteChannel {
    val found = new ArrayBuffer[ByteBuffer]

    override def write(source: ByteBuffer): Int = {
      val size = source.remaining
      if (size > 0 && source.isDirect) found += source.duplicate()
      else if (size > 0) found += ByteBuffer.allocate(size).put(source.duplicate()).flip()
      source.position(source.limit())
      size
    }

    override def isOpen: Boolean = true
    override def close(): Unit = ()
  }
}
