//! What the platform tells an operator, and how it answers.

use std::path::PathBuf;

use arrow_schema::SchemaRef;

use crate::rows::Rows;
use crate::{Result, Timestamp, Value};

/// What the platform tells an operator. Environment values and secrets stand in the process's environment.
#[non_exhaustive]
pub struct Context {
    /// The operator's name.
    pub operator: String,
    /// Its version.
    pub version: String,
    /// Which of its processes this is.
    pub instance: String,
    /// Columns of its events.
    pub input: SchemaRef,
    /// Columns of its answers.
    pub output: SchemaRef,
    /// Files given at deployment lie here.
    pub directory: PathBuf,
    pub(crate) watermark: Option<Timestamp>,
    pub(crate) rows: Rows,
}

impl Context {
    /// Answers an event: a value for each of the manifest's output columns, by [`row!`](crate::row).
    pub fn emit<'a>(&mut self, row: impl AsRef<[(&'a str, Value)]>) -> Result {
        self.rows.push(row.as_ref())
    }

    /// The event time up to which all has been seen; `None` before any is known.
    pub fn watermark(&self) -> Option<Timestamp> {
        self.watermark
    }
}

/// A row to answer: `row! {"id": 7, "flagged": true}`. Whatever [`Value`] can be made from is a value.
#[macro_export]
macro_rules! row {
    ($($name:literal : $value:expr),* $(,)?) => { [$(($name, $crate::Value::from($value))),*] };
}
