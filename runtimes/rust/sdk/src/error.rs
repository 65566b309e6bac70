//! The failure of a frame: an error with the backtrace of its origin, or a panic.

use std::any::type_name;
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::{self, AssertUnwindSafe};

/// The result type of operators.
pub type Result<T = ()> = std::result::Result<T, Error>;

/// The reason why an event or a batch failed. The operator `?` converts any error into one.
pub struct Error {
    pub(crate) class: String,
    pub(crate) message: String,
    pub(crate) trace: String,
    pub(crate) code: &'static str,
}

impl Error {
    /// Makes an error of the operator's own.
    pub fn new(message: impl fmt::Display) -> Self {
        Self::of("Error", message.to_string(), "")
    }

    /// An answer does not fit the output schema.
    pub(crate) fn schema(message: String) -> Self {
        Self::of("SchemaError", message, "schema")
    }

    /// An answer with `what` (its events and states) is larger than Start allows.
    pub(crate) fn too_large(what: &str, bytes: usize, bound: usize) -> Self {
        let advice = "return less per event, or send fewer events at a time";
        Self::of("TooLarge", format!("the answer to one frame has {what} of {bytes} bytes; the bound is {bound}: {advice}"), "")
    }

    fn of(class: &str, message: String, code: &'static str) -> Self {
        Self { class: class.to_string(), message, trace: Backtrace::force_capture().to_string(), code }
    }
}

/// The message includes those of the error's causes.
impl<E: std::error::Error> From<E> for Error {
    fn from(error: E) -> Self {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(inner) = cause {
            message = format!("{message}: {inner}");
            cause = inner.source();
        }
        Self::of(type_name::<E>(), message, "")
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}: {}\n{}", self.class, self.message, self.trace)
    }
}

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
    static PANICKED: RefCell<Option<Error>> = const { RefCell::new(None) };
}

/// From now on, panics inside [`guarded`] print nothing; other threads' panics are unchanged.
pub(crate) fn quiet_panics() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !GUARDED.get() {
            return before(info);
        }
        let payload = info.payload();
        let message = payload.downcast_ref::<&str>().map(|s| s.to_string()).or_else(|| payload.downcast_ref::<String>().cloned());
        let mut error = Error::of("panic", message.unwrap_or_else(|| "a panic without text".to_string()), "");
        if let Some(place) = info.location() {
            error.trace = format!("at {place}\n{}", error.trace);
        }
        PANICKED.set(Some(error));
    }));
}

/// Runs a function; a panic becomes an error.
pub(crate) fn guarded<R>(run: impl FnOnce() -> Result<R>) -> Result<R> {
    GUARDED.set(true);
    let done = panic::catch_unwind(AssertUnwindSafe(run));
    GUARDED.set(false);
    done.unwrap_or_else(|_| Err(PANICKED.take().unwrap_or_else(|| Error::new("a panic that no hook saw"))))
}
