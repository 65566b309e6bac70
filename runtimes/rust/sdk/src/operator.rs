//! The traits that operators implement, and the functions that turn operators into programs.

use arrow_array::RecordBatch;

use crate::{Context, Event, Key, Keys, Result, State, Timestamp, serve};

/// A vectorised operator. The answer has the manifest's output columns and any number of rows.
pub trait Batches {
    /// Answers a batch of events.
    fn process(&mut self, batch: &RecordBatch, ctx: &mut Context) -> Result<RecordBatch>;
    /// Loads what the operator needs, once per process.
    fn open(&mut self, _ctx: &Context) -> Result {
        Ok(())
    }
    /// Called once when the process ends normally.
    fn close(&mut self) -> Result {
        Ok(())
    }
}

/// An operator that works event by event and answers each with any number of calls to [`Context::emit`].
pub trait Events {
    /// Answers one event.
    fn process(&mut self, event: Event, ctx: &mut Context) -> Result;
    /// Loads what the operator needs, once per process.
    fn open(&mut self, _ctx: &Context) -> Result {
        Ok(())
    }
    /// Called once when the process ends normally.
    fn close(&mut self) -> Result {
        Ok(())
    }
}

/// A keyed operator that works event by event, with the state of the event's key. Each key's events come in order.
pub trait Keyed {
    /// Answers one event.
    fn process(&mut self, event: Event, key: &mut Key, ctx: &mut Context) -> Result;
    /// Loads what the operator needs, once per process.
    fn open(&mut self, _ctx: &Context) -> Result {
        Ok(())
    }
    /// Called once when the process ends normally.
    fn close(&mut self) -> Result {
        Ok(())
    }
}

/// A vectorised keyed operator: [`Keys`] has the batch's keys, each once, and the number of each row's key.
pub trait KeyedBatches {
    /// Answers a batch of events.
    fn process(&mut self, batch: &RecordBatch, keys: &mut Keys, ctx: &mut Context) -> Result<RecordBatch>;
    /// Loads what the operator needs, once per process.
    fn open(&mut self, _ctx: &Context) -> Result {
        Ok(())
    }
    /// Called once when the process ends normally.
    fn close(&mut self) -> Result {
        Ok(())
    }
}

/// A keyed operator with timers.
pub trait Timed {
    /// Called at the end of the first epoch whose watermark has reached `at`.
    fn on_timer(&mut self, at: Timestamp, key: &mut Key, ctx: &mut Context) -> Result;
}

/// Reads the state of a version with another `state_version` (`migrates_from` in operator.toml).
pub trait Migrating {
    /// Converts a state to this version's form.
    fn migrate(&mut self, old: State, from: u32) -> Result<State>;
}

/// The method that answers events.
pub(crate) enum Step<T> {
    Batches(fn(&mut T, &RecordBatch, &mut Context) -> Result<RecordBatch>),
    Events(fn(&mut T, Event, &mut Context) -> Result),
    Keyed(fn(&mut T, Event, &mut Key, &mut Context) -> Result),
    KeyedBatches(fn(&mut T, &RecordBatch, &mut Keys, &mut Context) -> Result<RecordBatch>),
}

/// An operator and the methods that the engine may call; [`run`](Operator::run) serves it.
pub struct Operator<T> {
    pub(crate) user: T,
    pub(crate) step: Step<T>,
    pub(crate) open: fn(&mut T, &Context) -> Result,
    pub(crate) close: fn(&mut T) -> Result,
    pub(crate) on_timer: Option<fn(&mut T, Timestamp, &mut Key, &mut Context) -> Result>,
    pub(crate) migrate: Option<fn(&mut T, State, u32) -> Result<State>>,
}

/// A vectorised operator.
pub fn batches<T: Batches>(user: T) -> Operator<T> {
    Operator { user, step: Step::Batches(T::process), open: T::open, close: T::close, on_timer: None, migrate: None }
}

/// An operator that works event by event.
pub fn events<T: Events>(user: T) -> Operator<T> {
    Operator { user, step: Step::Events(T::process), open: T::open, close: T::close, on_timer: None, migrate: None }
}

/// A keyed operator that works event by event.
pub fn keyed<T: Keyed>(user: T) -> Operator<T> {
    Operator { user, step: Step::Keyed(T::process), open: T::open, close: T::close, on_timer: None, migrate: None }
}

/// A vectorised keyed operator.
pub fn keyed_batches<T: KeyedBatches>(user: T) -> Operator<T> {
    Operator { user, step: Step::KeyedBatches(T::process), open: T::open, close: T::close, on_timer: None, migrate: None }
}

impl<T> Operator<T> {
    /// Declares that it has timers.
    pub fn timed(mut self) -> Self
    where
        T: Timed,
    {
        self.on_timer = Some(T::on_timer);
        self
    }

    /// Declares that it reads the state of other versions.
    pub fn migrating(mut self) -> Self
    where
        T: Migrating,
    {
        self.migrate = Some(T::migrate);
        self
    }

    /// Serves the operator until the engine stops it, then ends the process.
    pub fn run(mut self) -> ! {
        let Some(path) = std::env::var_os("UDO_OPERATOR_SOCKET") else {
            eprintln!("this program is an operator: try it with `udo test DIR` (UDO_OPERATOR_SOCKET is not set)");
            std::process::exit(2);
        };
        if let Err(why) = serve::serve(&mut self, path.as_ref()) {
            eprintln!("operator: {why}");
            std::process::exit(1);
        }
        std::process::exit(0) // even if threads of the operator's own are running
    }

    pub(crate) fn is_keyed(&self) -> bool {
        matches!(self.step, Step::Keyed(_) | Step::KeyedBatches(_))
    }

    pub(crate) fn capabilities(&self) -> Vec<String> {
        let has = [
            ("keyed", self.is_keyed()),
            ("timers", self.on_timer.is_some()),
            ("migrate", self.migrate.is_some()),
            ("rehearse", true),
        ];
        has.iter().filter(|(_, has)| *has).map(|(name, _)| name.to_string()).collect()
    }
}
