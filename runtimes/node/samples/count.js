// Answers each event with the number of events of its key so far.
import {run} from "udo-operator";

run({
  processKeyed(event, key) {
    const n = (key.state?.n ?? 0n) + 1n; // the state of a key, as any language may have left it: {"n": 3}
    key.state = {n};
    key.emit({...event, n});
  },
});
