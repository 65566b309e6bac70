package dev.udo.operator;

/** An operator that works event by event and answers each with any number of {@link Context#emit}. */
public interface EventOperator extends Operator {
    void process(Event event, Context ctx) throws Exception;
}
