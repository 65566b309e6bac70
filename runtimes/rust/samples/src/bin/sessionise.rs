//! Answers with the number of events in a key's session, once the key has had none for half a minute of event time.

use serde::{Deserialize, Serialize};
use udo_operator::chrono::TimeDelta;
use udo_operator::{Context, Event, Key, Keyed, Result, Timed, Timestamp, row};

const GAP: TimeDelta = TimeDelta::seconds(30);

#[derive(Serialize, Deserialize)]
struct Session {
    n: i64,
    last: Timestamp,
}

struct Sessionise;

impl Keyed for Sessionise {
    fn process(&mut self, event: Event, key: &mut Key, _: &mut Context) -> Result {
        let at: Timestamp = event.get("t")?;
        let before: Option<Session> = key.state()?;
        let latest = before.as_ref().is_none_or(|session| at > session.last);
        if latest {
            key.timer(at + GAP);
        }
        let n = before.as_ref().map_or(0, |session| session.n) + 1;
        let last = before.filter(|_| !latest).map_or(at, |session| session.last);
        key.set_state(&Session { n, last })
    }
}

impl Timed for Sessionise {
    fn on_timer(&mut self, at: Timestamp, key: &mut Key, ctx: &mut Context) -> Result {
        match key.state::<Session>()? {
            Some(session) if at >= session.last + GAP => {
                ctx.emit(row! {"k": key.value()?, "n": session.n, "ended": session.last})?;
                key.clear();
            }
            _ => {} // an event has come since
        }
        Ok(())
    }
}

fn main() {
    udo_operator::keyed(Sessionise).timed().run()
}
