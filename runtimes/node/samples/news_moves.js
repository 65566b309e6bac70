// A pattern over two inputs: news, and within a minute the first trade whose price has moved by 2 % since the last one before it.
import {run} from "udo-operator";

const WITHIN_NS = 60_000_000_000n, MOVE = 0.02;

// The state of a symbol, as any language may have left it: waiting events, as [at, input, headline or price]; news that no large move has
// followed yet, as [at, headline, price before it]; the last price. There is no price before the first trade.
const stateOf = (key) => key.state ?? {waiting: [], news: [], price: null};

run({
  processKeyed(event, key) {
    const said = event.input === "news" ? event.headline : event.price;
    if (!said) return; // it carries no information
    const state = stateOf(key);
    state.waiting.push([event.at, event.input, said]);
    key.state = state;
    key.timer(event.at);
  },

  // Processes the events of this moment: news first, then the trades, in order of arrival.
  onTimer(at, key) {
    let {waiting, news, price} = stateOf(key);
    const now = waiting.filter(([time]) => time.ns === at.ns);
    news = news.filter(([time]) => at.ns - time.ns <= WITHIN_NS);
    for (const [, input, headline] of now) {
      if (input === "news") news.push([at, headline, price]);
    }
    for (const [, input, said] of now) {
      if (input !== "trades") continue;
      price = said;
      news = news.filter(([, headline, before]) => {
        const moved = before !== null && Math.abs(price - before) >= MOVE * before;
        if (moved) key.emit({symbol: key.value, at, headline, change: (price - before) / before});
        return !moved;
      });
    }
    key.state = {waiting: waiting.filter(([time]) => time > at), news, price};
  },
});
