package dev.udo.operator;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.ByteString;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.Channels;
import java.nio.channels.ClosedChannelException;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.BigIntVector;
import org.apache.arrow.vector.Float8Vector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.WriteChannel;
import org.apache.arrow.vector.ipc.message.MessageSerializer;
import org.apache.arrow.vector.types.FloatingPointPrecision;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.DictionaryEncoding;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.FieldType;
import org.apache.arrow.vector.types.pojo.Schema;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import udo.operator.v1.Operator.Failure;
import udo.operator.v1.Operator.Message;
import udo.operator.v1.Operator.Ping;
import udo.operator.v1.Operator.Start;
import udo.operator.v1.Operator.Stop;

@Timeout(30)
class ServerTest {
    private static final ArrowType INT64 = new ArrowType.Int(64, true);
    private static final ArrowType DOUBLE = new ArrowType.FloatingPoint(FloatingPointPrecision.DOUBLE);
    private static final int MOST_HEADER_BYTES = 1 << 20;

    @TempDir
    Path folder;

    /** The engine's end of a connection. */
    private static final class Engine implements AutoCloseable {
        final String path;
        private final ServerSocketChannel listening = ServerSocketChannel.open(StandardProtocolFamily.UNIX);
        private SocketChannel operator;

        Engine(Path folder) throws IOException {
            path = folder.resolve("s").toString();
            listening.bind(UnixDomainSocketAddress.of(path));
        }

        private SocketChannel operator() throws IOException {
            operator = operator == null ? listening.accept() : operator;
            return operator;
        }

        Message next() throws IOException {
            InputStream from = Channels.newInputStream(operator());
            int size = ByteBuffer.wrap(from.readNBytes(8)).order(ByteOrder.LITTLE_ENDIAN).getInt();
            assertTrue(size <= MOST_HEADER_BYTES, "a header of " + size + " bytes");
            return Message.parseFrom(ByteBuffer.wrap(from.readNBytes(size + (-size & 7))).limit(size));
        }

        void send(Message.Builder message) throws IOException {
            byte[] head = message.build().toByteArray();
            int size = head.length + (-head.length & 7);
            ByteBuffer all = ByteBuffer.allocate(8 + size).order(ByteOrder.LITTLE_ENDIAN).putInt(head.length).putInt(0).put(head);
            Channels.newOutputStream(operator()).write(all.array());
        }

        @Override
        public void close() throws IOException {
            listening.close();
            if (operator != null) {
                operator.close();
            }
        }
    }

    private interface Opening {
        void open(Context ctx) throws Exception;
    }

    private static Operator opening(Opening what) {
        return new EventOperator() {
            @Override
            public void open(Context ctx) throws Exception {
                what.open(ctx);
            }

            @Override
            public void process(Event event, Context ctx) {}
        };
    }

    /** Runs this in a thread of its own. */
    private static FutureTask<Void> started(Callable<Void> what) {
        FutureTask<Void> task = new FutureTask<>(what);
        Thread thread = new Thread(task);
        thread.setDaemon(true);
        thread.start();
        return task;
    }

    private static FutureTask<Void> serving(Operator operator, Engine engine) throws IOException {
        Server server = new Server(operator, engine.path);
        FutureTask<Void> serving = started(() -> {
            server.serve();
            return null;
        });
        ByteArrayOutputStream schema = new ByteArrayOutputStream();
        MessageSerializer.serialize(new WriteChannel(Channels.newChannel(schema)), new Schema(List.of(Field.nullable("n", INT64))));
        ByteString columns = ByteString.copyFrom(schema.toByteArray());
        Start.Builder start = Start.newBuilder().setVersion(1).setOperator("t").setInput(columns).setOutput(columns);
        engine.send(Message.newBuilder().setId(1).setStart(start));
        return serving;
    }

    @Test
    void aThreadThatIsInterruptedSendsAndReceivesAndTheConnectionStays() throws Exception {
        try (Engine engine = new Engine(folder);
            BufferAllocator allocator = new RootAllocator();
            Wire wire = new Wire(engine.path, allocator)) {
            engine.send(Message.newBuilder().setPing(Ping.getDefaultInstance()));
            Thread.currentThread().interrupt();
            wire.send(Message.newBuilder().setPing(Ping.getDefaultInstance()), List.of());
            assertTrue(Thread.interrupted(), "what else the thread does is interrupted");
            assertTrue(engine.next().hasPing());
            Thread.currentThread().interrupt();
            try (Wire.Received received = wire.receive()) {
                assertTrue(received.message().hasPing());
            }
        } finally {
            Thread.interrupted();
        }
    }

    @Test
    void anInterruptInTheMiddleOfAMessageIsAnErrorAndNoRegularEnd() throws Exception {
        PrintStream stderr = System.err;
        System.setErr(new PrintStream(OutputStream.nullOutputStream())); // what cannot be logged is printed
        try (Engine engine = new Engine(folder)) {
            FutureTask<Void> ended = serving(opening(ctx -> {
                Thread logging = Thread.currentThread();
                FutureTask<Void> interrupting = started(() -> {
                    while (!Thread.currentThread().isInterrupted()) {
                        logging.interrupt();
                        Thread.onSpinWait();
                    }
                    return null;
                });
                for (int n = 0; n < 200; n++) { // more than fits between the two, since nobody reads
                    ctx.log().log(System.Logger.Level.INFO, "x".repeat(20_000));
                }
                interrupting.cancel(true);
            }), engine);
            Throwable why = assertThrows(ExecutionException.class, () -> ended.get(20, TimeUnit.SECONDS)).getCause();
            assertInstanceOf(ClosedChannelException.class, why);
        } finally {
            System.setErr(stderr);
        }
    }

    @Test
    void longMessagesAndLogLinesArriveCut() throws Exception {
        String million = "ü".repeat(1_000_000);
        try (Engine engine = new Engine(folder)) {
            FutureTask<Void> ended = serving(opening(ctx -> {
                ctx.log().log(System.Logger.Level.INFO, "first " + million + " last");
                throw new IllegalStateException("first " + million + " last");
            }), engine);
            assertTrue(engine.next().hasHello());
            String line = engine.next().getLog().getMessage();
            assertTrue(line.startsWith("first ü") && line.endsWith("ü last") && line.length() <= 64_000, line.length() + " characters");
            Failure failure = engine.next().getFailure();
            assertEquals(IllegalStateException.class.getName(), failure.getType());
            String said = failure.getMessage();
            assertTrue(said.startsWith("first ü") && said.endsWith("ü last") && said.length() <= 16_000, said.length() + " characters");
            assertTrue(failure.getTrace().contains("at dev.udo.operator.ServerTest") && failure.getTrace().length() <= 32_000);
            engine.send(Message.newBuilder().setId(2).setStop(Stop.getDefaultInstance()));
            assertTrue(engine.next().hasBye());
            ended.get(20, TimeUnit.SECONDS);
        }
    }

    private static Field struct(String... names) {
        List<Field> fields = List.of(names).stream().map(name -> Field.nullable(name, INT64)).toList();
        return new Field("p", FieldType.nullable(new ArrowType.Struct()), fields);
    }

    private static Field nested(ArrowType type, Field child) {
        return new Field("outer", FieldType.nullable(type), List.of(child));
    }

    @Test
    void fieldsOfAStructAreComparedByNameAndThoseOfListsAndMapsByPlace() {
        assertTrue(Server.sameType(struct("a", "b"), struct("a", "b")));
        for (Field other : List.of(struct("b", "a"), struct("a", "c"), struct("a"))) {
            assertTrue(!Server.sameType(other, struct("a", "b")), other + " is no struct of a and b");
            ArrowType list = new ArrowType.List();
            assertTrue(!Server.sameType(nested(list, other), nested(list, struct("a", "b"))), "nor is it in a list");
        }
        ArrowType map = new ArrowType.Map(false);
        assertTrue(Server.sameType(nested(map, struct("key", "value")), nested(map, struct("k", "v"))));
        Field coded = new Field("p", new FieldType(true, INT64, new DictionaryEncoding(1, false, null)), List.of());
        assertTrue(!Server.sameType(coded, Field.nullable("p", INT64)), "the numbers of a dictionary's values are not these");
    }

    @Test
    void aBatchIsWhatItsColumnsAre() {
        Schema output = new Schema(List.of(Field.nullable("n", DOUBLE)));
        try (BufferAllocator allocator = new RootAllocator();
            BigIntVector wrong = new BigIntVector("n", allocator);
            Float8Vector right = new Float8Vector("any", allocator)) {
            wrong.setSafe(0, 1);
            wrong.setValueCount(1);
            right.setSafe(0, 1.0);
            right.setValueCount(1);
            Server.requireFits(new VectorSchemaRoot(output, List.of(right), 1), output);
            String type = misfit(new VectorSchemaRoot(output, List.of(wrong), 1), output);
            assertTrue(type.endsWith("expected Schema<n: FloatingPoint(DOUBLE)>, got Schema<n: Int(64, true)>"), type);
            String rows = misfit(new VectorSchemaRoot(output, List.of(right), 2), output);
            assertTrue(rows.contains("2 rows, but its column \"n\" has 1 values"), rows);
        }
    }

    private static String misfit(VectorSchemaRoot answer, Schema output) {
        return assertThrows(SchemaException.class, () -> Server.requireFits(answer, output)).getMessage();
    }
}
