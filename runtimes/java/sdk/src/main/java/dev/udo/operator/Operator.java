package dev.udo.operator;

/**
 * An operator of udo-spark: a class that implements one of {@link BatchOperator}, {@link EventOperator}, {@link KeyedOperator} and
 * {@link KeyedBatchOperator}, and {@link Timed} and {@link Migrating} where it wants them. Its {@code main} calls {@link #run}.
 *
 * <p>What a method throws fails its frame with message and stack trace; the process goes on. Batches, events and keys are valid until
 * the method returns.
 */
public interface Operator {
    /** Loads what the operator needs, once per process. */
    default void open(Context ctx) throws Exception {}

    /** Called once when the process leaves in peace. */
    default void close() throws Exception {}

    /** Serves the operator until the engine stops it; it does not return. */
    static void run(Operator operator) {
        System.getProperties().putIfAbsent("org.slf4j.simpleLogger.log.org.apache.arrow", "warn"); // it tells of its own start otherwise
        String path = System.getenv("UDO_OPERATOR_SOCKET");
        if (path == null) {
            System.err.println("this program is an operator: try it with `udo test DIR` (UDO_OPERATOR_SOCKET is not set)");
            System.exit(2);
        }
        try {
            new Server(operator, path).serve();
        } catch (Throwable e) {
            e.printStackTrace();
            System.exit(1);
        }
        System.exit(0); // threads of the operator's own do not keep it
    }
}
