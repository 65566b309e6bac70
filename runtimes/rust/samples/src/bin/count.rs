//! Answers each event with the number of events of its key so far.

use serde::{Deserialize, Serialize};
use udo_operator::{Context, Event, Key, Keyed, Result, row};

/// The state of a key, as any language may have left it: `{"n": 3}`.
#[derive(Default, Serialize, Deserialize)]
struct State {
    n: i64,
}

struct Count;

impl Keyed for Count {
    fn process(&mut self, event: Event, key: &mut Key, ctx: &mut Context) -> Result {
        let mut state: State = key.state()?.unwrap_or_default();
        state.n += 1;
        key.set_state(&state)?;
        ctx.emit(row! {"id": event.value("id")?, "k": event.value("k")?, "n": state.n})
    }
}

fn main() {
    udo_operator::keyed(Count).run()
}
