//! A pattern over two inputs: news, and within a minute the first trade whose price has moved by 2 % since the last one before it.

use serde::{Deserialize, Serialize};
use udo_operator::chrono::TimeDelta;
use udo_operator::{Context, Event, Key, Keyed, Result, Timed, Timestamp, row};

const WITHIN: TimeDelta = TimeDelta::minutes(1);
const MOVE: f64 = 0.02;

#[derive(Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum Said {
    Price(f64),
    Headline(String),
}

/// The state of a symbol, as any language may have left it.
#[derive(Default, Serialize, Deserialize)]
struct State {
    /// Waiting events: at, input, headline or price.
    waiting: Vec<(Timestamp, String, Said)>,
    /// News that no large move has followed yet: at, headline, price before it.
    news: Vec<(Timestamp, String, Option<f64>)>,
    /// The last price; none before the first trade.
    price: Option<f64>,
}

struct NewsMoves;

impl Keyed for NewsMoves {
    fn process(&mut self, event: Event, key: &mut Key, _: &mut Context) -> Result {
        let (at, input): (Timestamp, &str) = (event.get("at")?, event.get("input")?);
        let said = if input == "news" {
            event.get::<Option<&str>>("headline")?.filter(|text| !text.is_empty()).map(|text| Said::Headline(text.into()))
        } else {
            event.get::<Option<f64>>("price")?.filter(|&price| price != 0.0).map(Said::Price)
        };
        let Some(said) = said else { return Ok(()) };
        let mut state: State = key.state()?.unwrap_or_default();
        state.waiting.push((at, input.into(), said));
        key.timer(at);
        key.set_state(&state)
    }
}

impl Timed for NewsMoves {
    // Processes the events of this moment: news first, then the trades, in order of arrival.
    fn on_timer(&mut self, at: Timestamp, key: &mut Key, ctx: &mut Context) -> Result {
        let State { waiting, mut news, mut price } = key.state()?.unwrap_or_default();
        let (later, now): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|event| event.0 > at);
        news.retain(|one| one.0 + WITHIN >= at);
        let mut prices = Vec::new();
        for (_, _, said) in now {
            match said {
                Said::Headline(headline) => news.push((at, headline, price)),
                Said::Price(price) => prices.push(price),
            }
        }
        for now in prices {
            let mut unmoved = Vec::new();
            for one in news {
                match one.2 {
                    Some(before) if (now - before).abs() >= MOVE * before => {
                        ctx.emit(row! {"symbol": key.value()?, "at": at, "headline": one.1, "change": (now - before) / before})?;
                    }
                    _ => unmoved.push(one),
                }
            }
            (news, price) = (unmoved, Some(now));
        }
        key.set_state(&State { waiting: later, news, price })
    }
}

fn main() {
    udo_operator::keyed(NewsMoves).timed().run()
}
