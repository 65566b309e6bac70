// Answers with the number of events in a key's session, once the key has had none for half a minute of event time.
import {Instant, run} from "udo-operator";

const GAP_NS = 30_000_000_000n;
const later = (at) => new Instant(at.ns + GAP_NS);

run({
  processKeyed(event, key) {
    const session = key.state ?? {n: 0n, last: undefined};
    session.n += 1n;
    if (session.last === undefined || event.t.ns > session.last.ns) {
      session.last = new Instant(event.t.ns);
      key.timer(later(session.last));
    }
    key.state = session;
  },

  onTimer(at, key) {
    const session = key.state;
    if (session === undefined || at < later(session.last)) return; // an event has come since
    key.emit({k: key.value, n: session.n, ended: session.last});
    key.state = undefined;
  },
});
