//! The operator's context, through which it also answers.

use std::path::PathBuf;

use arrow_schema::SchemaRef;

use crate::rows::Rows;
use crate::{Result, Timestamp, Value};

/// The operator's context. Environment values and secrets are in the process's environment.
#[non_exhaustive]
pub struct Context {
    /// The operator's name.
    pub operator: String,
    /// Its version.
    pub version: String,
    /// The id of this process, one of the instances of the operator.
    pub instance: String,
    /// The columns of its events.
    pub input: SchemaRef,
    /// The columns of its answers.
    pub output: SchemaRef,
    /// The directory of the files given at deployment.
    pub directory: PathBuf,
    pub(crate) watermark: Option<Timestamp>,
    pub(crate) rows: Rows,
}

impl Context {
    /// Answers an event: a value for each of the manifest's output columns, by [`row!`](crate::row). Not for methods that return a
    /// batch: their frame fails if they call it.
    pub fn emit<'a>(&mut self, row: impl AsRef<[(&'a str, Value)]>) -> Result {
        self.rows.push(row.as_ref())
    }

    /// The event time up to which all events have been seen; `None` until it is known.
    pub fn watermark(&self) -> Option<Timestamp> {
        self.watermark
    }
}

/// A row of an answer: `row! {"id": 7, "flagged": true}`. Values are of any type that converts into [`Value`].
#[macro_export]
macro_rules! row {
    ($($name:literal : $value:expr),* $(,)?) => { [$(($name, $crate::Value::from($value))),*] };
}
