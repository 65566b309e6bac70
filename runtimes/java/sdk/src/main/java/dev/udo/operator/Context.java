package dev.udo.operator;

import java.nio.file.Path;
import java.time.Instant;
import java.util.Map;
import java.util.Optional;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.types.pojo.Schema;

/** The operator's context. Environment values and secrets are in the process's environment. */
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

    /** The allocator for the vectors of an answer. */
    public BufferAllocator allocator() {
        return allocator;
    }

    /** The directory of the files given at deployment. */
    public Path directory() {
        return Path.of(System.getenv("UDO_DIRECTORY"));
    }

    /** The operator's log, shown by {@code udo logs}. */
    public System.Logger log() {
        return log;
    }

    /** The event time up to which all events have been seen; empty until it is known. */
    public Optional<Instant> watermark() {
        return Optional.ofNullable(watermarkUs).map(Times::instant);
    }

    /** Answers an event: the manifest's output columns. */
    public void emit(Map<String, ?> row) {
        rows.add(row);
    }
}
