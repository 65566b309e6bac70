package dev.udo.operator;

import java.io.EOFException;
import java.io.IOException;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.SocketChannel;
import java.nio.channels.WritableByteChannel;
import java.util.ArrayList;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import org.apache.arrow.flatbuf.RecordBatch;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorLoader;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.VectorUnloader;
import org.apache.arrow.vector.ipc.WriteChannel;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.ipc.message.MessageSerializer;
import udo.operator.v1.Operator.Message;
import udo.operator.v1.Operator.Part;

/** The wire form (docs/operator-protocol.md): u32 header, u32 body, Protobuf header, padding to 8, Arrow record batch messages. */
final class Wire implements AutoCloseable {
    /** A reply's table. */
    record Table(Part.Table kind, VectorSchemaRoot batch) {}

    /** A message and its tables, which are valid until it is closed. */
    record Received(Message message, List<ArrowBuf> buffers, Map<Part.Table, ArrowBuf> tables) implements AutoCloseable {
        /** Loads one of its tables into a batch of the table's schema; no rows if the message does not have the table. */
        void load(Part.Table kind, VectorSchemaRoot into) throws IOException {
            ArrowBuf data = tables.get(kind);
            if (data == null) {
                into.clear();
                into.setRowCount(0);
                return;
            }
            // An encapsulated message: four bytes of ones, the length of the metadata, the metadata, the buffers.
            int length = data.getInt(4);
            ByteBuffer described = data.nioBuffer(8, length).order(ByteOrder.LITTLE_ENDIAN);
            RecordBatch header = (RecordBatch) org.apache.arrow.flatbuf.Message.getRootAsMessage(described).header(new RecordBatch());
            ArrowBuf buffers = data.slice(8 + length, data.capacity() - 8 - length);
            buffers.getReferenceManager().retain(); // the batch releases it
            try (ArrowRecordBatch batch = MessageSerializer.deserializeRecordBatch(header, buffers)) {
                new VectorLoader(into).load(batch);
            }
        }

        @Override
        public void close() {
            buffers.forEach(ArrowBuf::close);
        }
    }

    private final SocketChannel channel;
    private final BufferAllocator allocator;
    private Shared shared; // once agreed on
    private long bound = Long.MAX_VALUE; // of an answer's tables in bytes, in the body or in shared memory
    private final ByteBuffer prefix = ByteBuffer.allocateDirect(8).order(ByteOrder.LITTLE_ENDIAN);

    Wire(String path, BufferAllocator allocator) throws IOException {
        this.allocator = allocator;
        channel = SocketChannel.open(UnixDomainSocketAddress.of(path));
    }

    /** Allows tables in this memory from now on. */
    void share(Shared memory) {
        shared = memory;
    }

    /** Bounds the tables of a reply from now on. */
    void bound(long bytes) {
        bound = bytes;
    }

    /** The next message; null when the engine is gone. */
    Received receive() throws IOException {
        prefix.clear();
        try {
            fill(prefix);
        } catch (EOFException e) {
            return null;
        }
        int size = prefix.getInt(0);
        int bodySize = prefix.getInt(4);
        ByteBuffer head = ByteBuffer.allocate(size + padding(size));
        fill(head);
        Message message = Message.parseFrom(head.flip().limit(size));
        ArrowBuf body = allocator.buffer(bodySize);
        List<ArrowBuf> buffers = new ArrayList<>(List.of(body));
        fill(body.nioBuffer(0, bodySize));
        Map<Part.Table, ArrowBuf> tables = new EnumMap<>(Part.Table.class);
        long at = 0;
        for (Part part : message.getPartsList()) {
            if (part.hasSharedOffset()) {
                if (shared == null) {
                    throw new IOException("part " + part.getTable() + " lies in shared memory, which was not agreed on");
                }
                ArrowBuf table = shared.take(part.getSharedOffset(), part.getBytes(), allocator);
                buffers.add(table);
                tables.put(part.getTable(), table);
                continue;
            }
            if (at + part.getBytes() > bodySize) {
                throw new IOException("part " + part.getTable() + " lies outside of the body");
            }
            tables.put(part.getTable(), body.slice(at, part.getBytes()));
            at += part.getBytes() + padding(part.getBytes());
        }
        return new Received(message, buffers, tables);
    }

    private void fill(ByteBuffer buffer) throws IOException {
        Thread.interrupted(); // it would close the channel, and whatever it was meant for ended with the last answer
        while (buffer.hasRemaining()) {
            if (channel.read(buffer) < 0) {
                throw new EOFException();
            }
        }
    }

    /** Writes one message with its tables; TooLargeException, and nothing is written, if they are too large. Any thread may log. */
    synchronized void send(Message.Builder message, List<Table> tables) throws IOException {
        List<ByteBuffer> pieces = new ArrayList<>();
        List<ArrowRecordBatch> batches = new ArrayList<>();
        boolean interrupted = Thread.interrupted(); // it would close the channel; a thread that logs finds it afterwards
        try {
            long bodySize = 0;
            long size = 0;
            if (shared != null && !tables.isEmpty()) {
                shared.begin();
            }
            for (Table table : tables) {
                ArrowRecordBatch batch = new VectorUnloader(table.batch).getRecordBatch();
                batches.add(batch);
                Pieces written = new Pieces(new ArrayList<>());
                MessageSerializer.serialize(new WriteChannel(written), batch);
                Part.Builder part = Part.newBuilder().setTable(table.kind).setBytes(written.size);
                size += written.size + padding(written.size);
                long offset = shared == null ? -1 : shared.put(written.pieces, written.size);
                if (offset >= 0) {
                    message.addParts(part.setSharedOffset(offset));
                    continue;
                }
                message.addParts(part);
                pieces.addAll(written.pieces);
                int padding = padding(written.size);
                pieces.add(ByteBuffer.allocate(padding));
                bodySize += written.size + padding;
            }
            if (size > bound) {
                throw new TooLargeException(rows(tables, Part.Table.ROWS), rows(tables, Part.Table.STATES), size, bound);
            }
            byte[] head = message.build().toByteArray();
            ByteBuffer first = ByteBuffer.allocate(8 + head.length + padding(head.length)).order(ByteOrder.LITTLE_ENDIAN);
            first.putInt(head.length).putInt((int) bodySize).put(head).rewind();
            pieces.add(0, first);
            ByteBuffer[] all = pieces.toArray(ByteBuffer[]::new);
            for (int at = 0; at < all.length; ) {
                channel.write(all, at, all.length - at);
                while (at < all.length && !all[at].hasRemaining()) {
                    at++;
                }
            }
        } finally {
            batches.forEach(ArrowRecordBatch::close);
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    private static long rows(List<Table> tables, Part.Table kind) {
        return tables.stream().filter(table -> table.kind == kind).mapToLong(table -> table.batch.getRowCount()).sum();
    }

    private static int padding(long size) {
        return (int) (-size & 7);
    }

    @Override
    public void close() throws IOException {
        channel.close();
    }

    /** Gathers Arrow's output. The vectors' buffers are not copied; arrays are, since the writer reuses them. */
    private static final class Pieces implements WritableByteChannel {
        private final List<ByteBuffer> pieces;
        private long size;

        Pieces(List<ByteBuffer> pieces) {
            this.pieces = pieces;
        }

        @Override
        public int write(ByteBuffer data) {
            int length = data.remaining();
            size += length;
            pieces.add(data.isDirect() ? data.duplicate() : ByteBuffer.allocate(length).put(data.duplicate()).flip());
            data.position(data.limit());
            return length;
        }

        @Override
        public boolean isOpen() {
            return true;
        }

        @Override
        public void close() {}
    }
}
