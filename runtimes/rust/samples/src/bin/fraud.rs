//! Flags card payments of an unusual amount, event by event.

use udo_operator::{Context, Event, Events, Result, row};

const LIMIT: f64 = 100.0;

struct Fraud;

impl Events for Fraud {
    fn process(&mut self, event: Event, ctx: &mut Context) -> Result {
        let value: Option<f64> = event.get("value")?;
        ctx.emit(row! {"id": event.value("id")?, "flagged": value.is_some_and(|v| v > LIMIT)})
    }
}

fn main() {
    udo_operator::events(Fraud).run()
}
