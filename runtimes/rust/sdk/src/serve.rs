//! The conversation with the engine: one request at a time, each answered once.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use std::{env, io};

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_schema::SchemaRef;

use crate::cut::cut;
use crate::error::{guarded, quiet_panics};
use crate::event::{Columns, columns_of};
use crate::keyed::{self, Key};
use crate::operator::Step;
use crate::pb::message::Kind;
use crate::pb::part::Table;
use crate::pb::{Answer, Bye, Failure, Hello, Log, Message, Ping, Ready, Start, log::Level};
use crate::rows::{Rows, same};
use crate::shared::Shared;
use crate::wire::{Decoder, Encoded, Encoder, Tables, Writer, dial};
use crate::{Context, Error, Event, Keys, Operator, Result, State, Timestamp};

const PROTOCOL_VERSION: u32 = 1;
const SHARED_MEMORY: &str = "shared-memory";
/// The largest possible body: its length is a number of 32 bits.
const MOST_BODY_BYTES: u64 = u32::MAX as u64;
/// A header has at most 1 MiB, and the engine cuts the class and the message together at 16,000 characters, a trace at 32,000.
const CLASS_CHARS: usize = 400;
const MESSAGE_CHARS: usize = 15_500;
const TRACE_CHARS: usize = 32_000;
const LOG_CHARS: usize = 64_000;
const SDK: &str = concat!("rust ", env!("CARGO_PKG_VERSION"));

/// Serves until the engine stops this process, or is gone.
pub(crate) fn serve<T>(operator: &mut Operator<T>, path: &Path) -> io::Result<()> {
    outlive_signals();
    quiet_panics();
    let (mut reader, writer) = dial(path)?;
    let offered = Shared::given().map(Arc::new);
    let mut capabilities = operator.capabilities();
    capabilities.extend(offered.iter().map(|_| SHARED_MEMORY.to_string()));
    let hello = Hello { oldest: PROTOCOL_VERSION, newest: PROTOCOL_VERSION, capabilities, sdk: SDK.to_string() };
    writer.send(message(0, Kind::Hello(hello)), &[], None)?;
    if log::set_boxed_logger(Box::new(Logs(writer.clone()))).is_ok() {
        log::set_max_level(log::LevelFilter::Debug);
    }
    let mut server = Server { operator, started: None, row: None };
    while let Some((request, tables)) = reader.receive()? {
        let last = matches!(request.kind, Some(Kind::Stop(_)));
        if let Some(Kind::Start(start)) = &request.kind {
            reader.shared = offered.clone().filter(|_| start.capabilities.iter().any(|c| c == SHARED_MEMORY));
        }
        server.row = None;
        let (reply, answer) = guarded(|| server.handle(request.kind, &tables)).unwrap_or_else(|why| (server.failure(why), vec![]));
        writer.send(message(request.id, reply), &answer, reader.shared.as_deref())?;
        if last {
            break;
        }
    }
    Ok(())
}

/// Keeps SIGINT and SIGTERM from ending this process: the engine says when to stop.
/// They are caught rather than ignored, since a program that the operator starts would ignore them too. (A process that it only forks,
/// which Rust's standard library does not offer, ignores them.)
fn outlive_signals() {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: the handler does nothing; an all-zero sigaction has an empty mask.
    unsafe {
        let mut caught: libc::sigaction = std::mem::zeroed();
        caught.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
        caught.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGINT, &caught, std::ptr::null_mut());
        libc::sigaction(libc::SIGTERM, &caught, std::ptr::null_mut());
    }
}

fn message(id: u64, kind: Kind) -> Message {
    Message { id, parts: vec![], kind: Some(kind) }
}

type Answered = Vec<Encoded>;

struct Server<'o, T> {
    operator: &'o mut Operator<T>,
    started: Option<Started>,
    /// The row being processed; `None`: not row by row.
    row: Option<usize>,
}

/// The state set up by Start.
struct Started {
    ctx: Context,
    /// The bound of an answer's tables in bytes, in the body or in shared memory.
    bound: usize,
    columns: Columns,
    input: Decoder,
    output: Encoder,
    index: Decoder,
    keys: Decoder,
    times: Decoder,
    states: Encoder,
    set: Encoder,
}

impl<T> Server<'_, T> {
    fn handle(&mut self, kind: Option<Kind>, tables: &Tables) -> Result<(Kind, Answered)> {
        let answer = match kind {
            Some(Kind::Start(start)) => return Ok((Kind::Ready(self.start(start)?), vec![])),
            Some(Kind::Ping(_)) => return Ok((Kind::Ping(Ping {}), vec![])),
            Some(Kind::Stop(_)) => {
                (self.operator.close)(&mut self.operator.user)?;
                return Ok((Kind::Bye(Bye {}), vec![]));
            }
            Some(Kind::Data(data) | Kind::Rehearse(data)) => self.data(data.watermark_us, tables)?,
            Some(Kind::Timers(timers)) => self.timers(timers.watermark_us, tables)?,
            Some(Kind::Migrate(migrate)) => self.migrate(migrate.from_version, tables)?,
            other => return Err(Error::new(format!("this SDK ({SDK}) does not know the request {other:?}"))),
        };
        bounded(&answer, begun(&mut self.started)?.bound)?;
        Ok((Kind::Answer(Answer {}), answer))
    }

    fn failure(&mut self, why: Error) -> Kind {
        if let Some(started) = &mut self.started {
            started.ctx.rows = started.ctx.rows.emptied(); // drops the rows emitted so far
        }
        Kind::Failure(Failure {
            r#type: cut(why.class, CLASS_CHARS),
            message: cut(why.message, MESSAGE_CHARS),
            trace: cut(why.trace, TRACE_CHARS),
            row: self.row.map(|row| row as u32),
            code: why.code.to_string(),
        })
    }

    fn start(&mut self, start: Start) -> Result<Ready> {
        if start.keyed.is_none() && self.operator.is_keyed() {
            return Err(Error::schema(
                "the operator keeps state by key, and operator.toml names no key: add key = [\"COLUMN\", ...], the columns that make it up"
                    .to_string(),
            ));
        }
        let (input, output) = (Decoder::of(&start.input)?, Decoder::of(&start.output)?.schema);
        let told = if start.answer_bytes == 0 { MOST_BODY_BYTES } else { start.answer_bytes };
        let bound = told.min(MOST_BODY_BYTES) as usize;
        let ctx = Context {
            operator: start.operator,
            version: start.operator_version,
            instance: start.instance,
            input: input.schema.clone(),
            output: output.clone(),
            directory: env::var_os("UDO_DIRECTORY").map(PathBuf::from).unwrap_or_default(),
            watermark: None,
            rows: Rows::new(output.clone(), bound),
        };
        let begun = Instant::now();
        if !start.check {
            (self.operator.open)(&mut self.operator.user, &ctx)?;
        }
        let open_ms = begun.elapsed().as_secs_f64() * 1000.0;
        let decoder = |schema: &SchemaRef| Decoder { schema: schema.clone() };
        self.started = Some(Started {
            ctx,
            bound,
            columns: columns_of(&input.schema),
            input,
            output: Encoder::of(&output)?,
            index: decoder(&keyed::INDEX),
            keys: decoder(&keyed::KEYS),
            times: decoder(&keyed::TIMES),
            states: Encoder::of(&keyed::STATES)?,
            set: Encoder::of(&keyed::TIMES)?,
        });
        Ok(Ready { open_ms })
    }

    fn data(&mut self, watermark_us: Option<i64>, tables: &Tables) -> Result<Answered> {
        let (Operator { user, step, .. }, started) = (&mut *self.operator, begun(&mut self.started)?);
        let batch = started.input.batch(tables, Table::Events)?;
        started.ctx.watermark = watermark_us.map(Timestamp::from_micros).transpose()?;
        let columns = &started.columns;
        let event = |row| Event { batch: &batch, columns, row };
        match step {
            Step::Batches(process) => {
                let answer = process(user, &batch, &mut started.ctx)?;
                started.whole(&answer)
            }
            Step::Events(process) => {
                for row in 0..batch.num_rows() {
                    self.row = Some(row);
                    process(user, event(row), &mut started.ctx)?;
                }
                self.row = None;
                started.emitted()
            }
            Step::Keyed(process) => {
                let sent = started.keys.batch(tables, Table::Keys)?;
                let mut keys = keyed::touched(&sent);
                let rows = keyed::numbers(&started.index.batch(tables, Table::Index)?, keys.len())?;
                for (row, &key) in rows.iter().enumerate() {
                    self.row = Some(row);
                    process(user, event(row), &mut keys[key], &mut started.ctx)?;
                }
                self.row = None;
                Ok(joined(started.emitted()?, started.changes(&keys, false)?))
            }
            Step::KeyedBatches(process) => {
                let sent = started.keys.batch(tables, Table::Keys)?;
                let keys = keyed::touched(&sent);
                let rows = keyed::numbers(&started.index.batch(tables, Table::Index)?, keys.len())?;
                let mut keys = Keys { rows: &rows, keys };
                let answer = process(user, &batch, &mut keys, &mut started.ctx)?;
                Ok(joined(started.whole(&answer)?, started.changes(&keys.keys, false)?))
            }
        }
    }

    fn timers(&mut self, watermark_us: i64, tables: &Tables) -> Result<Answered> {
        let (operator, started) = (&mut *self.operator, begun(&mut self.started)?);
        let on_timer = operator.on_timer.ok_or_else(|| Error::new("this operator has no timers (timed)"))?;
        started.ctx.watermark = Some(Timestamp::from_micros(watermark_us)?);
        let (sent, due) = (started.keys.batch(tables, Table::Keys)?, started.times.batch(tables, Table::Due)?);
        let mut keys = keyed::touched(&sent);
        let times = due.column(1).as_primitive::<Int64Type>().values();
        for (row, (&key, &at)) in keyed::numbers(&due, keys.len())?.iter().zip(times.iter()).enumerate() {
            self.row = Some(row);
            on_timer(&mut operator.user, Timestamp::from_micros(at)?, &mut keys[key], &mut started.ctx)?;
        }
        self.row = None;
        Ok(joined(started.emitted()?, started.changes(&keys, false)?))
    }

    fn migrate(&mut self, from: u32, tables: &Tables) -> Result<Answered> {
        let (operator, started) = (&mut *self.operator, begun(&mut self.started)?);
        let migrate = operator.migrate.ok_or_else(|| Error::new("this operator migrates no state (migrating)"))?;
        let sent = started.keys.batch(tables, Table::Keys)?;
        let mut keys = keyed::touched(&sent);
        for (row, key) in keys.iter_mut().enumerate() {
            self.row = Some(row);
            let old: State = key.state()?.unwrap_or_default();
            key.set_state(&migrate(&mut operator.user, old, from)?)?;
        }
        self.row = None;
        started.changes(&keys, true)
    }
}

fn begun(started: &mut Option<Started>) -> Result<&mut Started> {
    started.as_mut().ok_or_else(|| Error::new("a request came before Start"))
}

fn joined(mut tables: Answered, more: Answered) -> Answered {
    tables.extend(more);
    tables
}

/// An error if the tables exceed the bound.
fn bounded(answer: &[Encoded], bound: usize) -> Result {
    let bytes = answer.iter().map(Encoded::bytes).sum();
    if bytes <= bound {
        return Ok(());
    }
    let rows = |table| answer.iter().filter(|encoded| encoded.table == table).map(|encoded| encoded.rows).sum::<usize>();
    let (events, states) = (rows(Table::Rows), rows(Table::States));
    let what = if states > 0 { format!("{events} events and {states} states") } else { format!("{events} events") };
    Err(Error::too_large(&what, bytes, bound))
}

impl Started {
    fn emitted(&mut self) -> Result<Answered> {
        Ok(vec![self.output.encode(Table::Rows, &self.ctx.rows.take()?)?])
    }

    /// The table of an answer made by the operator itself.
    fn whole(&mut self, answer: &RecordBatch) -> Result<Answered> {
        let emitted = self.ctx.rows.count;
        if emitted > 0 {
            return Err(Error::new(format!(
                "expected all answers in the returned batch, and {emitted} were emitted: add them to the batch"
            )));
        }
        let (have, want) = (answer.schema_ref().fields(), self.ctx.output.fields());
        let mut both = have.iter().zip(want);
        if have.len() != want.len() || !both.all(|(a, b)| a.name() == b.name() && same(a.data_type(), b.data_type())) {
            let shown = |fields: &arrow_schema::Fields| {
                fields.iter().map(|f| format!("{}: {}", f.name(), f.data_type())).collect::<Vec<_>>().join(", ")
            };
            let (want, have) = (shown(want), shown(have));
            return Err(Error::schema(format!("the operator's answer does not fit its output schema: expected {want}, got {have}")));
        }
        Ok(vec![self.output.encode(Table::Rows, answer)?])
    }

    fn changes(&mut self, keys: &[Key], all: bool) -> Result<Answered> {
        let (states, set) = (keyed::changes(keys, all)?, keyed::timers(keys)?);
        let mut tables = vec![self.states.encode(Table::States, &states)?];
        if set.num_rows() > 0 {
            tables.push(self.set.encode(Table::Set, &set)?);
        }
        Ok(tables)
    }
}

/// Sends log records to the engine.
struct Logs(Writer);

impl log::Log for Logs {
    fn enabled(&self, _: &log::Metadata) -> bool {
        true
    }

    fn log(&self, record: &log::Record) {
        let level = match record.level() {
            log::Level::Error => Level::Error,
            log::Level::Warn => Level::Warning,
            log::Level::Info => Level::Info,
            log::Level::Debug | log::Level::Trace => Level::Debug,
        };
        let line = Log { level: level as i32, message: cut(record.args().to_string(), LOG_CHARS) };
        let _ = self.0.send(message(0, Kind::Log(line)), &[], None); // if the engine is gone, the next reply finds out
    }

    fn flush(&self) {}
}
