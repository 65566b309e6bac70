//! The Rust SDK's conformance operator: docs/operator-protocol.md describes the roles, and `udo conformance` tests them.

mod benchmarked;
mod history;

use std::sync::Arc;
use std::time::Duration;
use std::{env, process, thread};

use udo_operator::arrow_array::cast::AsArray;
use udo_operator::arrow_array::types::{Int64Type, TimestampMicrosecondType};
use udo_operator::arrow_array::{ArrayRef, Int64Array, RecordBatch, new_null_array};
use udo_operator::{
    Batches, Context, Error, Event, Events, Key, Keyed, KeyedBatches, Keys, Migrating, Result, State, Timed, Timestamp, Value, batches,
    events, keyed, keyed_batches, log, row,
};

use benchmarked::Counted;

fn open() -> Result {
    match env::var("UDO_CONFORMANCE_OPEN").as_deref() {
        Ok("fails") => Err(Error::new("no model")),
        _ => Ok(()),
    }
}

struct Forward;

impl Batches for Forward {
    fn process(&mut self, batch: &RecordBatch, _: &mut Context) -> Result<RecordBatch> {
        Ok(batch.clone())
    }
    fn open(&mut self, _: &Context) -> Result {
        open()
    }
}

struct Each;

impl Events for Each {
    fn process(&mut self, event: Event, ctx: &mut Context) -> Result {
        let input = ctx.input.clone();
        let row = input.fields().iter().map(|field| Ok((field.name().as_str(), event.value(field.name())?)));
        ctx.emit(row.collect::<Result<Vec<_>>>()?)
    }
    fn open(&mut self, _: &Context) -> Result {
        open()
    }
}

struct Doing;

impl Events for Doing {
    fn process(&mut self, event: Event, ctx: &mut Context) -> Result {
        let n: i64 = event.get("n")?;
        match event.get("do")? {
            "none" => return Ok(()),
            "twice" => ctx.emit(row! {"n": n + 1})?,
            "log" => {
                for level in [log::Level::Debug, log::Level::Info, log::Level::Warn, log::Level::Error] {
                    log::log!(level, "log {n}");
                }
            }
            "print" => println!("print {n}"),
            "raise" => return Err(Error::new(format!("raise {n}"))),
            "endless" => loop {
                ctx.emit(row! {"n": n + 1})?;
            },
            "wrong" => return ctx.emit(row! {"n": "text"}),
            "sleep" => thread::sleep(Duration::from_millis(n as u64)),
            "hang" => loop {
                thread::park();
            },
            "exit" => process::exit(3),
            "abort" => process::abort(),
            "memory" => {
                let mut taken = Vec::new();
                loop {
                    taken.push(vec![1u8; 1 << 24]);
                }
            }
            _ => {}
        }
        ctx.emit(row! {"n": n + 1})
    }
    fn open(&mut self, _: &Context) -> Result {
        open()
    }
    fn close(&mut self) -> Result {
        println!("closed");
        Ok(())
    }
}

struct Stateful;

/// Adds to `n` in the key's state, and leaves the rest.
fn add(key: &mut Key, n: i64) -> Result<i64> {
    let mut state: State = key.state()?.unwrap_or_default();
    let sum = state.get("n").and_then(Value::as_int).unwrap_or(0) + n;
    state.insert("n".to_string(), sum.into());
    key.set_state(&state)?;
    Ok(sum)
}

impl Keyed for Stateful {
    fn process(&mut self, event: Event, key: &mut Key, ctx: &mut Context) -> Result {
        let (mut n, mut at) = (None, None);
        match event.get("do")? {
            "count" => n = Some(add(key, event.get("n")?)?),
            "get" => n = key.state::<Counted>()?.map(|state| state.n),
            "copy" => {
                if let Some(state) = key.state::<State>()? {
                    key.set_state(&state)?;
                }
                return Ok(());
            }
            "clear" => {
                key.clear();
                return Ok(());
            }
            "timer" => {
                key.timer(event.get("at")?);
                return Ok(());
            }
            "expire" => {
                key.expire(event.get("at")?);
                return Ok(());
            }
            "watermark" => at = ctx.watermark(),
            "raise" => {
                add(key, 1000)?;
                key.timer(event.get("at")?);
                return Err(Error::new(format!("raise {}", event.get::<i64>("n")?)));
            }
            other => return Err(Error::new(other)),
        }
        ctx.emit(row! {"k": event.value("k")?, "n": n, "at": at})
    }
    fn open(&mut self, _: &Context) -> Result {
        open()
    }
}

fn fired(at: Timestamp, key: &mut Key, ctx: &mut Context) -> Result {
    let n = add(key, 1)?;
    ctx.emit(row! {"k": key.value()?, "n": n, "at": at})
}

impl Timed for Stateful {
    fn on_timer(&mut self, at: Timestamp, key: &mut Key, ctx: &mut Context) -> Result {
        fired(at, key, ctx)
    }
}

impl Migrating for Stateful {
    fn migrate(&mut self, mut old: State, from: u32) -> Result<State> {
        let n = old.get("n").and_then(Value::as_int).unwrap_or(0) * 10;
        old.extend([("n".to_string(), n.into()), ("from".to_string(), from.into())]);
        Ok(old)
    }
}

/// Counts over the batch with the states of its keys.
struct Vectorised;

impl KeyedBatches for Vectorised {
    fn process(&mut self, batch: &RecordBatch, keys: &mut Keys, ctx: &mut Context) -> Result<RecordBatch> {
        let mut sums = Counted::of(keys)?;
        let added = batch.column(2).as_primitive::<Int64Type>().values();
        let each = keys.rows().iter().zip(added.iter()).map(|(&key, n)| {
            sums[key].n += n;
            sums[key].n
        });
        let n: ArrayRef = Arc::new(Int64Array::from_iter_values(each));
        Counted::keep(&sums, keys)?;
        let times = batch.column(3).as_primitive::<TimestampMicrosecondType>();
        for ((&key, what), &us) in keys.rows().iter().zip(batch.column(1).as_string::<i32>()).zip(times.values()) {
            match what {
                Some("timer") => keys[key].timer(Timestamp::from_micros(us)?),
                Some("expire") => keys[key].expire(Timestamp::from_micros(us)?),
                _ => {}
            }
        }
        let at = new_null_array(ctx.output.field(2).data_type(), batch.num_rows());
        Ok(RecordBatch::try_new(ctx.output.clone(), vec![batch.column(0).clone(), n, at])?)
    }
    fn open(&mut self, _: &Context) -> Result {
        open()
    }
}

impl Timed for Vectorised {
    fn on_timer(&mut self, at: Timestamp, key: &mut Key, ctx: &mut Context) -> Result {
        fired(at, key, ctx)
    }
}

fn main() {
    let role = env::var("UDO_CONFORMANCE").ok().or_else(|| env::args().nth(1)).unwrap_or_default();
    match role.as_str() {
        "forward" => batches(Forward).run(),
        "each" => events(Each).run(),
        "events" => events(Doing).run(),
        "keyed" => keyed(Stateful).timed().migrating().run(),
        "keyed_batches" => keyed_batches(Vectorised).timed().run(),
        "history" | "history_wrapped" => history::run(&role),
        _ => benchmarked::run(&role),
    }
}
