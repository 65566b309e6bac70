package dev.udo.operator;

/** Works event by event, in the order of each key, with the state of the event's key. */
public interface KeyedOperator extends Operator {
    void process(Event event, Key key) throws Exception;
}
