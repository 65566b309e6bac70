package dev.udo.operator;

/**
 * An operator of udo-spark: a class that implements one of {@link BatchOperator}, {@link EventOperator}, {@link KeyedOperator} and
 * {@link KeyedBatchOperator}, and, as needed, {@link Timed} and {@link Migrating}. Its {@code main} calls {@link #run}.
 *
 * <p>An exception fails the current frame with its message and stack trace; the process goes on. Batches, events and keys are valid
 * until the method returns.
 */
public interface Operator {
    /** Loads what the operator needs, once per process. */
    default void open(Context ctx) throws Exception {}

    /** Called once when the process ends normally. */
    default void close() throws Exception {}

    /** Serves the operator until the engine stops it; it does not return. */
    static void run(Operator operator) {
        System.getProperties().putIfAbsent("org.slf4j.simpleLogger.log.org.apache.arrow", "warn"); // otherwise Arrow logs its own start
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
        System.exit(0); // even if threads of the operator's own are running
    }
}
