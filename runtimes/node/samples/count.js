// Answers each event with how many of its key there have been.
import {run} from "udo-operator";

run({
  processKeyed(event, key) {
    const n = (key.state?.n ?? 0n) + 1n; // the state of a key, as any language may have left it: {"n": 3}
    key.state = {n};
    key.emit({...event, n});
  },
});
