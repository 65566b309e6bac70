// A keyed join of two inputs: each trade with the quote that was in force when it was made.
import {run} from "udo-operator";

// The state of a symbol, as any language may have left it: waiting trades, as [at, price], and quotes that are still needed, by time, as
// [at, bid, ask].
const stateOf = (key) => key.state ?? {trades: [], quotes: []};

run({
  processKeyed(event, key) {
    const {trades, quotes} = stateOf(key);
    if (event.input === "quotes") {
      quotes.push([event.at, event.bid, event.ask]);
      quotes.sort(([a], [b]) => Number(a.ns - b.ns)); // stable: equal times in order of arrival
    } else {
      trades.push([event.at, event.price]);
      key.timer(event.at);
    }
    key.state = {trades, quotes};
  },

  // Called when event time has passed the trades of this moment in both inputs.
  onTimer(at, key) {
    const {trades, quotes} = stateOf(key);
    const before = quotes.filter(([time]) => time <= at);
    const [, bid, ask] = before.at(-1) ?? [at, null, null];
    for (const [time, price] of trades) {
      if (time.ns === at.ns) key.emit({symbol: key.value, at, price, bid, ask});
    }
    key.state = {trades: trades.filter(([time]) => time > at), quotes: [...before.slice(-1), ...quotes.slice(before.length)]};
  },
});
