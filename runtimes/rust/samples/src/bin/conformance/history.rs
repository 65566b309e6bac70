//! The roles that `python -m benchmarks exactly_once` runs under faults: benchmarks/operators/history/history.py in Rust, with its two
//! forms of state.

use udo_operator::chrono::TimeDelta;
use udo_operator::{Context, Error, Event, Key, Keyed, LocalTime, Migrating, Result, State, Timed, Timestamp, Value, row};

const GAP: TimeDelta = TimeDelta::seconds(20);
const WITHIN: TimeDelta = TimeDelta::seconds(30);
const FORGET: TimeDelta = TimeDelta::seconds(60);
// In the other form, the name of the entry that holds the whole state.
const INSIDE: &str = "in";

/// `wrapped`: the other form of state.
struct History {
    wrapped: bool,
}

impl History {
    fn read(&self, key: &Key) -> Result<State> {
        let state: State = key.state()?.unwrap_or_default();
        Ok(if self.wrapped { inside(state) } else { state })
    }

    fn write(&self, key: &mut Key, state: State) -> Result {
        if state.is_empty() {
            key.clear();
            return Ok(());
        }
        key.set_state(&if self.wrapped { State::from([(INSIDE.to_string(), Value::Map(state))]) } else { state })
    }
}

fn inside(mut state: State) -> State {
    match state.remove(INSIDE) {
        Some(Value::Map(state)) => state,
        _ => State::new(),
    }
}

fn int(state: &State, name: &str) -> Option<i64> {
    state.get(name).and_then(Value::as_int)
}

fn time(state: &State, name: &str) -> Option<LocalTime> {
    if let Some(Value::LocalTime(at)) = state.get(name) { Some(*at) } else { None }
}

fn list(state: &State, name: &str) -> Option<Vec<Value>> {
    if let Some(Value::List(values)) = state.get(name) { Some(values.clone()) } else { None }
}

fn put(state: &mut State, name: &str, value: impl Into<Value>) {
    state.insert(name.to_string(), value.into());
}

fn local(at: Timestamp) -> LocalTime {
    LocalTime(at.0.naive_utc())
}

fn ask(state: &mut State, key: &mut Key, at: Timestamp) {
    let mut asked = list(state, "asked").unwrap_or_default();
    asked.push(local(at).into());
    put(state, "asked", asked);
    key.timer(at);
}

fn count(state: &mut State) -> (String, i64) {
    let n = int(state, "n").unwrap_or(0) + 1;
    put(state, "n", n);
    ("count".to_string(), n)
}

fn last(event: Event, state: &mut State) -> Result<(String, i64)> {
    let mut kinds = if let Some(Value::Map(kinds)) = state.remove("kinds") { kinds } else { State::new() };
    let kind: &str = event.get("kind")?;
    let seen = int(&kinds, kind).unwrap_or(0) + 1;
    put(&mut kinds, kind, seen);
    let mut recent = list(state, "recent").unwrap_or_default();
    let ids: Vec<i64> = recent.iter().filter_map(Value::as_int).collect();
    // Formatted like Python's lists, texts and tuples.
    let counts: Vec<String> = kinds.iter().map(|(kind, n)| format!("('{kind}', {})", n.as_int().unwrap_or(0))).collect();
    let what = format!("after {ids:?} [{}]", counts.join(", "));
    recent.push(event.value("id")?);
    if recent.len() > 3 {
        recent.remove(0);
    }
    put(state, "kinds", kinds);
    put(state, "recent", recent);
    put(state, "at", local(event.get("t")?));
    Ok((what, ids.last().copied().unwrap_or(-1)))
}

fn session(event: Event, state: &mut State, key: &mut Key) -> Result {
    if !state.contains_key("first") {
        put(state, "first", event.value("id")?);
    }
    count(state);
    let at: Timestamp = event.get("t")?;
    let until = local(at + GAP);
    put(state, "until", time(state, "until").map_or(until, |before| before.max(until)));
    ask(state, key, at + GAP);
    Ok(())
}

fn pattern(event: Event, state: &mut State, key: &mut Key) -> Result<Option<(String, i64)>> {
    let at: Timestamp = event.get("t")?;
    match event.get("kind")? {
        "A" => {
            put(state, "a", event.value("id")?);
            key.expire(at + FORGET);
        }
        "B" if state.contains_key("a") && !state.contains_key("b") => {
            put(state, "b", event.value("id")?);
            put(state, "due", local(at + WITHIN));
            ask(state, key, at + WITHIN);
        }
        "C" if state.contains_key("b") => {
            let a = int(state, "a").unwrap_or(-1);
            forget(state);
            return Ok(Some(("C came in time".to_string(), a)));
        }
        _ => {}
    }
    Ok(None)
}

fn forget(state: &mut State) {
    for name in ["a", "b", "due"] {
        state.remove(name);
    }
}

fn letter(key: &Key) -> Result<(String, char)> {
    match key.value()? {
        Value::Text(text) => {
            let first = text.chars().next().unwrap_or(' ');
            Ok((text, first))
        }
        _ => Err(Error::new("expected a key of text")),
    }
}

impl Keyed for History {
    fn process(&mut self, event: Event, key: &mut Key, ctx: &mut Context) -> Result {
        let (text, first) = letter(key)?;
        let mut state = self.read(key)?;
        let made = match first {
            'c' => Some(count(&mut state)),
            'l' => Some(last(event, &mut state)?),
            's' => session(event, &mut state, key).map(|()| None)?,
            'p' => pattern(event, &mut state, key)?,
            _ => return Err(Error::new(format!("no behaviour for the key {text}"))),
        };
        self.write(key, state)?;
        made.map_or(Ok(()), |(what, n)| ctx.emit(row! {"k": text, "id": event.value("id")?, "what": what, "n": n}))
    }
}

impl Timed for History {
    fn on_timer(&mut self, at: Timestamp, key: &mut Key, ctx: &mut Context) -> Result {
        let (text, first) = letter(key)?;
        let mut state = self.read(key)?;
        let at = local(at);
        if let Some(asked) = list(&state, "asked") {
            if !asked.iter().any(|asked| matches!(asked, Value::LocalTime(asked) if *asked == at)) {
                ctx.emit(row! {"k": text.clone(), "id": -1i64, "what": format!("a timer nobody asked for: {}", at.0), "n": 0i64})?;
            }
        }
        if first == 's' && time(&state, "until") == Some(at) {
            ctx.emit(row! {"k": text, "id": int(&state, "first"), "what": "session", "n": int(&state, "n")})?;
            state.clear();
        } else if first == 'p' && time(&state, "due") == Some(at) {
            ctx.emit(row! {"k": text, "id": int(&state, "b"), "what": "A B and no C", "n": int(&state, "a")})?;
            forget(&mut state);
        } else {
            return Ok(());
        }
        self.write(key, state)
    }
}

impl Migrating for History {
    fn migrate(&mut self, old: State, _: u32) -> Result<State> {
        Ok(match (self.wrapped, old.is_empty()) {
            (true, true) => State::new(),
            (true, false) => State::from([(INSIDE.to_string(), Value::Map(old))]),
            (false, _) => inside(old),
        })
    }
}

pub fn run(role: &str) -> ! {
    let wrapped = role == "history_wrapped";
    udo_operator::keyed(History { wrapped }).timed().migrating().run()
}
