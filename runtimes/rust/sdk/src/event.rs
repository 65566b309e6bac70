//! Events as rows of a record batch.

use std::collections::HashMap;

use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, Schema, TimeUnit};
use chrono::{DateTime, NaiveDateTime};

use crate::{Date, Decimal, Error, LocalTime, Result, Timestamp, Value};

/// The index of each column by its name.
pub(crate) type Columns = HashMap<String, usize>;

pub(crate) fn columns_of(schema: &Schema) -> Columns {
    schema.fields().iter().enumerate().map(|(n, field)| (field.name().clone(), n)).collect()
}

/// One event. Its methods take a column's name; if there is no such column, or it has another type, the error says what there is.
#[derive(Clone, Copy)]
pub struct Event<'a> {
    pub(crate) batch: &'a RecordBatch,
    pub(crate) columns: &'a Columns,
    pub(crate) row: usize,
}

impl<'a> Event<'a> {
    fn column(&self, name: &str) -> Result<&'a ArrayRef> {
        let found = self.columns.get(name).map(|&n| self.batch.column(n));
        found.ok_or_else(|| {
            let names: Vec<_> = self.batch.schema_ref().fields().iter().map(|f| f.name().as_str()).collect();
            Error::new(format!("the event has no column {name:?}; there are: {}", names.join(", ")))
        })
    }

    /// A column's value: i64 (an integer column of any width, unsigned ones too), u64 (an unsigned column), f64, bool, `&str`,
    /// [`Timestamp`] (taken as UTC if it has no zone), or an `Option` of these where it may be null.
    pub fn get<T: FromColumn<'a>>(&self, name: &str) -> Result<T> {
        let column = self.column(name)?;
        if !T::NULLABLE && column.is_null(self.row) {
            return Err(Error::new(format!("column {name:?} is null in this event: read it as an Option")));
        }
        T::read(column, self.row).ok_or_else(|| match value_of(column, self.row) {
            Value::UInt(v) => Error::new(format!("column {name:?} has {v}, which is beyond i64: read it as u64")),
            _ => Error::new(format!("column {name:?} is {}, not {}", column.data_type(), T::WHAT)),
        })
    }

    /// The value of any column, to inspect or to use in an answer.
    pub fn value(&self, name: &str) -> Result<Value> {
        Ok(value_of(self.column(name)?, self.row))
    }
}

/// The types that [`Event::get`] can return.
pub trait FromColumn<'a>: Sized {
    /// The type in words, for messages.
    const WHAT: &'static str;
    /// Whether the type has a value for null.
    const NULLABLE: bool = false;
    /// Reads a value; `None` if the column has another type.
    fn read(column: &'a ArrayRef, row: usize) -> Option<Self>;
}

impl<'a, T: FromColumn<'a>> FromColumn<'a> for Option<T> {
    const WHAT: &'static str = T::WHAT;
    const NULLABLE: bool = true;
    fn read(column: &'a ArrayRef, row: usize) -> Option<Self> {
        if column.is_null(row) { Some(None) } else { T::read(column, row).map(Some) }
    }
}

impl FromColumn<'_> for i64 {
    const WHAT: &'static str = "an integer";
    fn read(column: &ArrayRef, row: usize) -> Option<Self> {
        match column.as_primitive_opt::<Int64Type>() {
            Some(column) => Some(column.value(row)),
            None => value_of(column, row).as_int(),
        }
    }
}

impl FromColumn<'_> for u64 {
    const WHAT: &'static str = "an unsigned integer";
    fn read(column: &ArrayRef, row: usize) -> Option<Self> {
        match value_of(column, row) {
            Value::UInt(v) => Some(v),
            Value::Int(v) if column.data_type().is_unsigned_integer() => u64::try_from(v).ok(),
            _ => None,
        }
    }
}

impl FromColumn<'_> for f64 {
    const WHAT: &'static str = "a floating point number";
    fn read(column: &ArrayRef, row: usize) -> Option<Self> {
        match column.as_primitive_opt::<Float64Type>() {
            Some(column) => Some(column.value(row)),
            None => column.as_primitive_opt::<Float32Type>().map(|column| column.value(row).into()),
        }
    }
}

impl FromColumn<'_> for bool {
    const WHAT: &'static str = "a boolean";
    fn read(column: &ArrayRef, row: usize) -> Option<Self> {
        column.as_boolean_opt().map(|column| column.value(row))
    }
}

impl<'a> FromColumn<'a> for &'a str {
    const WHAT: &'static str = "text";
    fn read(column: &'a ArrayRef, row: usize) -> Option<Self> {
        match column.as_string_opt::<i32>() {
            Some(column) => Some(column.value(row)),
            None => column.as_string_opt::<i64>().map(|column| column.value(row)),
        }
    }
}

impl FromColumn<'_> for Timestamp {
    const WHAT: &'static str = "a timestamp";
    fn read(column: &ArrayRef, row: usize) -> Option<Self> {
        time_of(column, row).map(|at| Self(at.and_utc()))
    }
}

/// The time in a column of µs, Spark's only unit.
fn time_of(column: &ArrayRef, row: usize) -> Option<NaiveDateTime> {
    let us = column.as_primitive_opt::<TimestampMicrosecondType>()?.value(row);
    Some(DateTime::from_timestamp_micros(us)?.naive_utc())
}

fn value_of(column: &ArrayRef, row: usize) -> Value {
    if column.is_null(row) {
        return Value::Null;
    }
    macro_rules! int {
        ($kind:ty) => {
            Value::Int(column.as_primitive::<$kind>().value(row).into())
        };
    }
    let known = match column.data_type() {
        DataType::Null => Some(Value::Null),
        DataType::Boolean => Some(Value::Bool(column.as_boolean().value(row))),
        DataType::Int64 => Some(int!(Int64Type)),
        DataType::Int32 => Some(int!(Int32Type)),
        DataType::Int16 => Some(int!(Int16Type)),
        DataType::Int8 => Some(int!(Int8Type)),
        DataType::UInt64 => Some(column.as_primitive::<UInt64Type>().value(row).into()),
        DataType::UInt32 => Some(int!(UInt32Type)),
        DataType::UInt16 => Some(int!(UInt16Type)),
        DataType::UInt8 => Some(int!(UInt8Type)),
        DataType::Float64 => Some(Value::Float(column.as_primitive::<Float64Type>().value(row))),
        DataType::Float32 => Some(Value::Float(column.as_primitive::<Float32Type>().value(row).into())),
        DataType::Utf8 | DataType::LargeUtf8 => <&str>::read(column, row).map(Value::from),
        DataType::Binary => Some(Value::Binary(column.as_binary::<i32>().value(row).to_vec())),
        DataType::LargeBinary => Some(Value::Binary(column.as_binary::<i64>().value(row).to_vec())),
        DataType::Timestamp(TimeUnit::Microsecond, None) => time_of(column, row).map(|at| Value::LocalTime(LocalTime(at))),
        DataType::Timestamp(TimeUnit::Microsecond, Some(_)) => time_of(column, row).map(|at| Value::Timestamp(Timestamp(at.and_utc()))),
        DataType::Date32 => Date32Type::to_naive_date_opt(column.as_primitive::<Date32Type>().value(row)).map(|day| Value::Date(Date(day))),
        DataType::Decimal128(_, scale) if *scale >= 0 => {
            Some(Value::Decimal(Decimal(column.as_primitive::<Decimal128Type>().value_as_string(row))))
        }
        _ => None,
    };
    known.unwrap_or_else(|| Value::Arrow(column.slice(row, 1)))
}
