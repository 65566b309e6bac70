package dev.udo.operator;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.List;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;

/** The memory offered by the engine in UDO_OPERATOR_SHARED: its first half holds tables of requests, the second those of replies. */
final class Shared {
    /** Tables smaller than this cost less in the message itself. */
    private static final int LEAST_BYTES = 32 << 10;

    private final MappedByteBuffer memory;
    private final int half;
    private int used; // bytes of the second half used by the message being written

    private Shared(MappedByteBuffer memory) {
        this.memory = memory;
        half = memory.capacity() / 2;
    }

    /** The memory; null if none is offered, or it cannot be mapped. */
    static Shared given() {
        String path = System.getenv("UDO_OPERATOR_SHARED");
        if (path == null) {
            return null;
        }
        try (FileChannel file = FileChannel.open(Path.of(path), StandardOpenOption.READ, StandardOpenOption.WRITE)) {
            return new Shared(file.map(FileChannel.MapMode.READ_WRITE, 0, file.size()));
        } catch (IOException | IllegalArgumentException e) {
            return null;
        }
    }

    /** Copies a table of a request: the engine overwrites it with the next one. */
    ArrowBuf take(long offset, long size, BufferAllocator allocator) throws IOException {
        if (offset < 0 || size < 0 || offset > half || size > half - offset) {
            throw new IOException("a table lies outside of the shared memory");
        }
        ArrowBuf copy = allocator.buffer(size);
        copy.setBytes(0, memory.slice((int) offset, (int) size));
        return copy.writerIndex(size);
    }

    /** Called before the tables of a message. */
    void begin() {
        used = 0;
    }

    /** Writes a table of this size and returns its offset; -1 if it is small enough to be sent instead, or if there is no room. */
    long put(List<ByteBuffer> pieces, long size) {
        if (size < LEAST_BYTES || size > half - used) {
            return -1;
        }
        int start = half + used;
        int at = start;
        for (ByteBuffer piece : pieces) {
            memory.put(at, piece, piece.position(), piece.remaining());
            at += piece.remaining();
        }
        used = (int) Math.min(half, used + ((size + 63) & ~63));
        return start;
    }
}
