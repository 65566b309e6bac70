package dev.udo.operator;

import java.nio.file.Path;
import java.time.Instant;
import java.util.Map;
import java.util.Optional;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.types.pojo.Schema;

/** What the platform tells an operator. Environment values and secrets stand in the process's environment. */
public final class Context {
    private final String operator;
    private final String version;
    private final String instance;
    private final Schema input;
    private final Schema output;
    private final BufferAllocator allocator;
    private final System.Logger log;
    Long watermarkUs;
    Rows rows;

    Context(String operator, String version, String instance, Schema input, Schema output, BufferAllocator allocator, System.Logger log,
        long bound) {
        this.operator = operator;
        this.version = version;
        this.instance = instance;
        this.input = input;
        this.output = output;
        this.allocator = allocator;
        this.log = log;
        rows = new Rows(output, allocator, bound);
    }

    public String operator() {
        return operator;
    }

    public String version() {
        return version;
    }

    public String instance() {
        return instance;
    }

    public Schema input() {
        return input;
    }

    public Schema output() {
        return output;
    }

    /** Where vectors of an answer are allocated. */
    public BufferAllocator allocator() {
        return allocator;
    }

    /** Files given at deployment lie here. */
    public Path directory() {
        return Path.of(System.getenv("UDO_DIRECTORY"));
    }

    /** Its lines reach {@code udo logs}. */
    public System.Logger log() {
        return log;
    }

    /** The event time up to which all has been seen; empty before any is known. */
    public Optional<Instant> watermark() {
        return Optional.ofNullable(watermarkUs).map(Times::instant);
    }

    /** Answers an event: the manifest's output columns. */
    public void emit(Map<String, ?> row) {
        rows.add(row);
    }
}
