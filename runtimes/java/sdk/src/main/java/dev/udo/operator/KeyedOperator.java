package dev.udo.operator;

/** A keyed operator that works event by event, in order within each key, with the state of the event's key. */
public interface KeyedOperator extends Operator {
    void process(Event event, Key key) throws Exception;
}
