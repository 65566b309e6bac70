//! Values of events and of states.

use std::fmt::Debug;
use std::ops::Add;

use arrow_array::{Array, ArrayRef};
use chrono::{DateTime, Datelike, NaiveDate, NaiveDateTime, TimeDelta, Utc};

use crate::{Result, State};

/// One value of an event, an answer or a state.
#[derive(Clone, Debug)]
pub enum Value {
    Null,
    Bool(bool),
    Int(i64),
    /// An integer beyond an i64: of a column `uint64`, or of a state. Made by `u64::into`, which makes an `Int` of all others.
    UInt(u64),
    Float(f64),
    Text(String),
    Binary(Vec<u8>),
    Timestamp(Timestamp),
    LocalTime(LocalTime),
    Date(Date),
    Decimal(Decimal),
    /// In states only.
    List(Vec<Value>),
    /// In states only.
    Map(State),
    /// In events and answers only: lists, structs, maps, and all types that have no variant here, as an Arrow array of this one value.
    Arrow(ArrayRef),
}

/// A point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub DateTime<Utc>);

/// A time without a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalTime(pub NaiveDateTime);

/// A day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Date(pub NaiveDate);

/// A decimal number as its digits: `12.50`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Decimal(pub String);

impl Timestamp {
    /// A time from µs since 1970; an error beyond chrono's range of years.
    pub fn from_micros(us: i64) -> Result<Self> {
        DateTime::from_timestamp_micros(us).map(Self).ok_or_else(|| crate::Error::new(format!("{us} µs since 1970 is out of range")))
    }

    /// µs since 1970.
    pub fn micros(self) -> i64 {
        self.0.timestamp_micros()
    }
}

impl Add<TimeDelta> for Timestamp {
    type Output = Self;
    fn add(self, delta: TimeDelta) -> Self {
        Self(self.0 + delta)
    }
}

/// An error unless the time is one that every language can read.
pub(crate) fn within_years(at: &(impl Datelike + Debug)) -> std::result::Result<(), String> {
    if (1..=9999).contains(&at.year()) {
        return Ok(());
    }
    Err(format!("expected a time of the years 1 to 9999, got {at:?}"))
}

impl Decimal {
    /// Whether the text is a number: not empty, no lone sign or point.
    pub(crate) fn is_number(&self) -> bool {
        self.0.parse::<f64>().is_ok()
    }

    /// The number in units of 10^-scale; `None` if it is not a number, or has more decimal places.
    pub(crate) fn unscaled(&self, scale: i8) -> Option<i128> {
        if !self.is_number() {
            return None;
        }
        let (whole, fraction) = self.0.split_once('.').unwrap_or((&self.0, ""));
        let fraction = fraction.trim_end_matches('0');
        let more = usize::try_from(scale).ok()?.checked_sub(fraction.len())?;
        if !fraction.bytes().all(|c| c.is_ascii_digit()) {
            return None;
        }
        format!("{whole}{fraction}{}", "0".repeat(more)).parse().ok()
    }
}

macro_rules! from {
    ($($kind:ident($from:ty)),*) => {$(
        impl From<$from> for Value {
            fn from(v: $from) -> Self {
                Self::$kind(v.into())
            }
        }
    )*};
}
from!(Bool(bool), Int(i64), Int(i32), Int(i16), Int(u32), Float(f64), Float(f32), Text(String), Text(&str), Binary(Vec<u8>));
from!(Timestamp(Timestamp), LocalTime(LocalTime), Date(Date), Decimal(Decimal), List(Vec<Value>), Map(State), Arrow(ArrayRef));

impl From<u64> for Value {
    fn from(v: u64) -> Self {
        i64::try_from(v).map_or(Self::UInt(v), Self::Int)
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(v: Option<T>) -> Self {
        v.map_or(Self::Null, Into::into)
    }
}

impl Value {
    /// The integer, if it is one.
    pub fn as_int(&self) -> Option<i64> {
        if let Self::Int(v) = self { Some(*v) } else { None }
    }

    /// The kind in words, for messages.
    pub(crate) fn kind(&self) -> String {
        match self {
            Self::Arrow(array) => format!("an Arrow array of {} × {}", array.len(), array.data_type()),
            other => format!("{other:?}"),
        }
    }
}
