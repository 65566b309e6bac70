package dev.udo.operator;

/** An operator that works event by event and answers each by calling {@link Context#emit} any number of times. */
public interface EventOperator extends Operator {
    void process(Event event, Context ctx) throws Exception;
}
