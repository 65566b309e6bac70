package dev.udo.operator;

import com.google.protobuf.ByteString;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.channels.Channels;
import java.nio.channels.ClosedChannelException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.stream.Stream;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ReadChannel;
import org.apache.arrow.vector.ipc.message.MessageSerializer;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.Schema;
import sun.misc.Signal;
import udo.operator.v1.Operator.Answer;
import udo.operator.v1.Operator.Bye;
import udo.operator.v1.Operator.Data;
import udo.operator.v1.Operator.Failure;
import udo.operator.v1.Operator.Hello;
import udo.operator.v1.Operator.Message;
import udo.operator.v1.Operator.Part;
import udo.operator.v1.Operator.Ping;
import udo.operator.v1.Operator.Ready;
import udo.operator.v1.Operator.Start;

/** The conversation with the engine: one request at a time, each answered once. */
final class Server {
    private static final int PROTOCOL_VERSION = 1;
    private static final String SDK = "java 0.1.0";
    private static final String SHARED_MEMORY = "shared-memory";
    /** The largest possible body: its length is a 32-bit number. */
    private static final long MOST_BODY_BYTES = (1L << 32) - 1;

    private final Operator operator;
    private final BufferAllocator allocator = new RootAllocator();
    private final Wire wire;
    private final Shared offered = Shared.given();
    private final Keyed keyed = new Keyed(allocator);
    private VectorSchemaRoot input;
    private Event event;
    private Context ctx;
    private int row; // the row being processed; -1: not row by row
    private VectorSchemaRoot answered; // to be closed once it is sent

    Server(Operator operator, String path) throws IOException {
        this.operator = operator;
        // The engine says when to stop. Signals are caught, not ignored: programs that the operator starts would inherit ignored ones.
        for (String name : new String[] {"INT", "TERM"}) {
            Signal.handle(new Signal(name), signal -> {});
        }
        Hello.Builder hello = Hello.newBuilder().setOldest(PROTOCOL_VERSION).setNewest(PROTOCOL_VERSION).setSdk(SDK);
        hello.addAllCapabilities(capabilities());
        wire = new Wire(path, allocator);
        wire.send(Message.newBuilder().setHello(hello), List.of());
    }

    private List<String> capabilities() {
        List<String> found = new ArrayList<>(List.of("rehearse"));
        if (operator instanceof KeyedOperator || operator instanceof KeyedBatchOperator) {
            found.add("keyed");
        } else if (!(operator instanceof BatchOperator || operator instanceof EventOperator)) {
            throw new IllegalArgumentException(
                operator.getClass().getName() + " is none of BatchOperator, EventOperator, KeyedOperator and KeyedBatchOperator");
        }
        if (operator instanceof Timed) {
            found.add("timers");
        }
        if (operator instanceof Migrating) {
            found.add("migrate");
        }
        if (offered != null) {
            found.add(SHARED_MEMORY);
        }
        return found;
    }

    /** Serves until the engine stops this process, or is gone. */
    void serve() throws IOException {
        while (true) {
            try (Wire.Received request = wire.receive()) {
                if (request == null) {
                    return;
                }
                if (request.message().hasStart() && request.message().getStart().getCapabilitiesList().contains(SHARED_MEMORY)) {
                    wire.share(offered);
                }
                try {
                    answer(request);
                } catch (ClosedChannelException e) {
                    throw e; // it was closed here: by an interrupt in the middle of a message
                } catch (IOException e) {
                    return; // the engine is gone
                }
                done();
                if (request.message().hasStop()) {
                    return;
                }
            }
        }
    }

    private void answer(Wire.Received request) throws IOException {
        Message.Builder reply = Message.newBuilder().setId(request.message().getId());
        List<Wire.Table> answer = guarded(request, reply);
        try {
            wire.send(reply, answer);
        } catch (TooLargeException e) {
            row = -1;
            wire.send(Message.newBuilder().setId(request.message().getId()).setFailure(failure(e)), List.of());
        }
    }

    private void done() {
        if (ctx != null) {
            ctx.rows.clear();
        }
        if (answered != null && answered != input) {
            answered.close();
        }
        answered = null;
    }

    /** Handles a request; an exception becomes a Failure. */
    private List<Wire.Table> guarded(Wire.Received request, Message.Builder reply) {
        row = -1;
        try {
            return handle(request, reply);
        } catch (Throwable e) { // also errors when the operator's code runs out of memory or stack
            reply.setFailure(failure(e));
            return List.of();
        }
    }

    private Failure failure(Throwable e) {
        StringWriter trace = new StringWriter();
        e.printStackTrace(new PrintWriter(trace));
        Failure.Builder failure = Failure.newBuilder().setType(e.getClass().getName());
        failure.setMessage(Text.cut(String.valueOf(e.getMessage()), Text.MESSAGE_CHARS));
        failure.setTrace(Text.cut(trace.toString(), Text.TRACE_CHARS));
        if (e instanceof SchemaException) {
            failure.setCode("schema");
        }
        if (row >= 0) {
            failure.setRow(row);
        }
        return failure.build();
    }

    private List<Wire.Table> handle(Wire.Received request, Message.Builder reply) throws Exception {
        Message message = request.message();
        reply.setAnswer(Answer.getDefaultInstance());
        switch (message.getKindCase()) {
            case START -> reply.setReady(start(message.getStart()));
            case DATA -> {
                return data(message.getData(), request);
            }
            case REHEARSE -> {
                return data(message.getRehearse(), request);
            }
            case TIMERS -> {
                return timers(message.getTimers().getWatermarkUs(), request);
            }
            case MIGRATE -> {
                return migrate(message.getMigrate().getFromVersion(), request);
            }
            case PING -> reply.setPing(Ping.getDefaultInstance());
            case STOP -> {
                reply.setBye(Bye.getDefaultInstance());
                operator.close();
            }
            default -> throw new UnsupportedOperationException(
                "this SDK (" + SDK + ") does not know the request " + message.getKindCase());
        }
        return List.of();
    }

    private Ready start(Start start) throws Exception {
        if (!start.hasKeyed() && (operator instanceof KeyedOperator || operator instanceof KeyedBatchOperator)) {
            throw new SchemaException(
                "the operator keeps state by key, and operator.toml names no key: add key = [\"COLUMN\", ...], the columns that make it up");
        }
        Schema incoming = schema(start.getInput());
        input = VectorSchemaRoot.create(incoming, allocator);
        event = new Event(input);
        long told = start.getAnswerBytes(); // an unsigned number, or 0: none
        long bound = told > 0 ? Math.min(told, MOST_BODY_BYTES) : MOST_BODY_BYTES;
        wire.bound(bound);
        ctx = new Context(start.getOperator(), start.getOperatorVersion(), start.getInstance(), incoming, schema(start.getOutput()),
            allocator, new Log(start.getOperator(), wire), bound);
        long begun = System.nanoTime();
        if (!start.getCheck()) {
            operator.open(ctx);
        }
        return Ready.newBuilder().setOpenMs((System.nanoTime() - begun) / 1e6).build();
    }

    private static Schema schema(ByteString message) throws IOException {
        return MessageSerializer.deserializeSchema(new ReadChannel(Channels.newChannel(new ByteArrayInputStream(message.toByteArray()))));
    }

    private List<Wire.Table> data(Data data, Wire.Received request) throws Exception {
        request.load(Part.Table.EVENTS, input);
        ctx.watermarkUs = data.hasWatermarkUs() ? data.getWatermarkUs() : null;
        if (operator instanceof BatchOperator batches) {
            return whole(batches.process(input, ctx));
        }
        if (operator instanceof EventOperator events) {
            for (row = 0; row < input.getRowCount(); row++) {
                events.process(event.at(row), ctx);
            }
            return emitted();
        }
        Key[] touched = keyed.touched(request, ctx);
        Key[] rows = keyed.rows(request, touched);
        List<Wire.Table> answer;
        if (operator instanceof KeyedBatchOperator batches) {
            answer = whole(batches.process(input, rows, ctx));
        } else {
            for (row = 0; row < rows.length; row++) {
                ((KeyedOperator) operator).process(event.at(row), rows[row]);
            }
            answer = emitted();
        }
        return joined(answer, keyed.changes(touched, false));
    }

    private List<Wire.Table> timers(long watermarkUs, Wire.Received request) throws Exception {
        ctx.watermarkUs = watermarkUs;
        Key[] touched = keyed.touched(request, ctx);
        List<Key.Timer> due = keyed.due(request);
        for (row = 0; row < due.size(); row++) {
            ((Timed) operator).onTimer(Times.instant(due.get(row).atUs()), touched[due.get(row).key()]);
        }
        return joined(emitted(), keyed.changes(touched, false));
    }

    private List<Wire.Table> migrate(int fromVersion, Wire.Received request) throws Exception {
        Key[] touched = keyed.touched(request, ctx);
        for (row = 0; row < touched.length; row++) {
            Map<String, Object> old = touched[row].state().orElseGet(LinkedHashMap::new); // a key may have nothing but an expiration
            Map<String, Object> made = ((Migrating) operator).migrate(old, fromVersion);
            touched[row].setState(Objects.requireNonNull(made, "migrate returned null: expected the new state, a map that may be empty"));
        }
        return keyed.changes(touched, true);
    }

    private static List<Wire.Table> joined(List<Wire.Table> first, List<Wire.Table> second) {
        return Stream.concat(first.stream(), second.stream()).toList();
    }

    private List<Wire.Table> emitted() {
        return List.of(new Wire.Table(Part.Table.ROWS, ctx.rows.batch()));
    }

    private List<Wire.Table> whole(VectorSchemaRoot answer) {
        answered = answer;
        if (answer == null) {
            return List.of();
        }
        requireFits(answer, ctx.output());
        return List.of(new Wire.Table(Part.Table.ROWS, answer));
    }

    /** Looks at the vectors: a batch may be made of other ones than its own schema says. */
    static void requireFits(VectorSchemaRoot answer, Schema output) {
        List<Field> have = new ArrayList<>();
        for (Field named : answer.getSchema().getFields()) {
            Field vector = answer.getVector(have.size()).getField();
            have.add(new Field(named.getName(), vector.getFieldType(), vector.getChildren()));
        }
        List<Field> want = output.getFields();
        boolean fits = have.size() == want.size();
        for (int i = 0; fits && i < want.size(); i++) {
            fits = have.get(i).getName().equals(want.get(i).getName()) && sameType(have.get(i), want.get(i));
        }
        if (!fits) {
            throw new SchemaException(
                "the operator's answer does not fit its output schema: expected " + output + ", got " + new Schema(have));
        }
        for (int i = 0; i < have.size(); i++) {
            FieldVector vector = answer.getVector(i);
            if (vector.getValueCount() != answer.getRowCount()) {
                throw new SchemaException("the operator's answer has " + answer.getRowCount() + " rows, but its column \""
                    + have.get(i).getName() + "\" has " + vector.getValueCount() + " values: setRowCount sets both");
            }
        }
    }

    static boolean sameType(Field have, Field want) {
        return sameType(have, want, want.getType() instanceof ArrowType.Struct);
    }

    /** `named`: children count by their names and places; those of a list or map by their places alone. */
    private static boolean sameType(Field have, Field want, boolean named) {
        boolean same = have.getDictionary() == null && have.getType().equals(want.getType())
            && have.getChildren().size() == want.getChildren().size();
        for (int i = 0; same && i < want.getChildren().size(); i++) {
            Field a = have.getChildren().get(i);
            Field b = want.getChildren().get(i);
            boolean entries = want.getType() instanceof ArrowType.Map; // a struct, whose fields are the key and the value
            same = (!named || a.getName().equals(b.getName())) && sameType(a, b, b.getType() instanceof ArrowType.Struct && !entries);
        }
        return same;
    }
}
