// Flags card payments of an unusual amount, event by event.
import {run} from "udo-operator";

const LIMIT = 100.0;

run({
  process(event, ctx) {
    ctx.emit({id: event.id, flagged: event.value > LIMIT});
  },
});
