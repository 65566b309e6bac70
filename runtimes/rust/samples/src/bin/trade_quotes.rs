//! A keyed join of two inputs: each trade with the quote that was in force when it was made.

use serde::{Deserialize, Serialize};
use udo_operator::{Context, Event, Key, Keyed, Result, Timed, Timestamp, row};

/// A trade: at, price.
type Trade = (Timestamp, Option<f64>);
/// A quote: at, bid, ask.
type Quote = (Timestamp, Option<f64>, Option<f64>);

/// The state of a symbol, as any language may have left it: waiting trades, and quotes that are still needed, by time.
#[derive(Default, Serialize, Deserialize)]
struct State {
    trades: Vec<Trade>,
    quotes: Vec<Quote>,
}

struct TradeQuotes;

impl Keyed for TradeQuotes {
    fn process(&mut self, event: Event, key: &mut Key, _: &mut Context) -> Result {
        let mut state: State = key.state()?.unwrap_or_default();
        let at: Timestamp = event.get("at")?;
        if event.get::<&str>("input")? == "quotes" {
            state.quotes.push((at, event.get("bid")?, event.get("ask")?));
            state.quotes.sort_by_key(|quote| quote.0); // stable: equal times in order of arrival
        } else {
            state.trades.push((at, event.get("price")?));
            key.timer(at);
        }
        key.set_state(&state)
    }
}

impl Timed for TradeQuotes {
    // Called when event time has passed the trades of this moment in both inputs.
    fn on_timer(&mut self, at: Timestamp, key: &mut Key, ctx: &mut Context) -> Result {
        let mut state: State = key.state()?.unwrap_or_default();
        let before = state.quotes.partition_point(|quote| quote.0 <= at);
        let (bid, ask) = before.checked_sub(1).map_or((None, None), |last| (state.quotes[last].1, state.quotes[last].2));
        for (_, price) in state.trades.iter().filter(|trade| trade.0 == at) {
            ctx.emit(row! {"symbol": key.value()?, "at": at, "price": *price, "bid": bid, "ask": ask})?;
        }
        state.trades.retain(|trade| trade.0 > at);
        state.quotes.drain(..before.saturating_sub(1));
        key.set_state(&state)
    }
}

fn main() {
    udo_operator::keyed(TradeQuotes).timed().run()
}
