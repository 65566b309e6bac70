//! Gathers answered events into a record batch of bounded size.

use std::sync::Arc;

use arrow_array::builder::{BooleanBuilder, Float64Builder, Int64Builder, StringBuilder, TimestampMicrosecondBuilder};
use arrow_array::types::Date32Type;
use arrow_array::*;
use arrow_schema::{DataType, FieldRef, Fields, SchemaRef, TimeUnit};
use arrow_select::concat::concat;

use crate::{Error, Result, Value, size};

pub(crate) struct Rows {
    schema: SchemaRef,
    columns: Vec<Column>,
    pub(crate) count: usize,
    bytes: usize,
    row_bytes: usize,
    bound: usize,
}

/// Every integer up to this one is a double; not all larger ones are.
const MOST_WHOLE: u64 = 1 << 53;
/// The most arrays of one value to keep before they are joined: each takes some hundred bytes, however small its value.
const MOST_SINGLE: usize = 1024;

/// The most common types are built value by value, the others from arrays of one value each.
enum Column {
    Int(Int64Builder),
    Float(Float64Builder),
    Bool(BooleanBuilder),
    Text(StringBuilder),
    Time(TimestampMicrosecondBuilder),
    Other { joined: Vec<ArrayRef>, single: Vec<ArrayRef> },
}

impl Rows {
    pub(crate) fn new(schema: SchemaRef, bound: usize) -> Self {
        let columns = schema.fields().iter().map(|field| Column::new(field.data_type())).collect();
        let row_bytes = schema.fields().iter().map(|field| size::fixed(field.data_type())).sum();
        Self { schema, columns, count: 0, bytes: 0, row_bytes, bound }
    }

    /// The same without any rows.
    pub(crate) fn emptied(&self) -> Self {
        Self::new(self.schema.clone(), self.bound)
    }

    /// Adds a row. Returns an error if it does not fit the schema, or if the rows exceed the bound; after that, the rows are unusable.
    pub(crate) fn push(&mut self, row: &[(&str, Value)]) -> Result {
        let fields = self.schema.fields();
        if row.len() != fields.len() {
            let names: Vec<_> = fields.iter().map(|f| f.name().as_str()).collect();
            return Err(Error::schema(format!(
                "expected an event with the columns {}; the operator answered {}",
                names.join(", "),
                shown(row)
            )));
        }
        for (n, field) in fields.iter().enumerate() {
            let found = if row[n].0 == field.name() { Some(&row[n]) } else { row.iter().find(|(name, _)| name == field.name()) };
            let Some((_, value)) = found else {
                return Err(Error::schema(format!("the answer lacks the column {:?}; it has: {}", field.name(), shown(row))));
            };
            if !self.columns[n].push(value, field.data_type())? {
                let (name, want) = (field.name(), field.data_type());
                return Err(Error::schema(format!("column {name:?}: expected {want}, the operator answered {}", value.kind())));
            }
        }
        self.count += 1;
        self.bytes += self.row_bytes + row.iter().map(|(_, value)| size::varied(value)).sum::<usize>();
        if self.bytes > self.bound {
            return Err(Error::too_large(&format!("{} events", self.count), self.bytes, self.bound));
        }
        Ok(())
    }

    /// Returns the rows as a batch, and removes them.
    pub(crate) fn take(&mut self) -> Result<RecordBatch> {
        let schema = self.schema.clone();
        self.bytes = 0;
        let columns =
            self.columns.iter_mut().zip(schema.fields()).map(|(column, field)| column.finish(field.data_type())).collect::<Result<_>>()?;
        let count = RecordBatchOptions::new().with_row_count(Some(std::mem::take(&mut self.count)));
        Ok(RecordBatch::try_new_with_options(schema, columns, &count)?)
    }
}

fn shown(row: &[(&str, Value)]) -> String {
    if row.is_empty() { "none".to_string() } else { row.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ") }
}

impl Column {
    fn new(kind: &DataType) -> Self {
        match kind {
            DataType::Int64 => Self::Int(Int64Builder::new()),
            DataType::Float64 => Self::Float(Float64Builder::new()),
            DataType::Boolean => Self::Bool(BooleanBuilder::new()),
            DataType::Utf8 => Self::Text(StringBuilder::new()),
            DataType::Timestamp(TimeUnit::Microsecond, _) => Self::Time(TimestampMicrosecondBuilder::new().with_data_type(kind.clone())),
            _ => Self::Other { joined: Vec::new(), single: Vec::new() },
        }
    }

    /// Appends a value; returns whether it fits.
    fn push(&mut self, value: &Value, kind: &DataType) -> Result<bool> {
        match (self, value) {
            (Self::Int(b), Value::Int(v)) => b.append_value(*v),
            (Self::Int(b), Value::Null) => b.append_null(),
            (Self::Float(b), Value::Float(v)) => b.append_value(*v),
            (Self::Float(b), Value::Int(v)) if v.unsigned_abs() <= MOST_WHOLE => b.append_value(*v as f64),
            (Self::Float(b), Value::Null) => b.append_null(),
            (Self::Bool(b), Value::Bool(v)) => b.append_value(*v),
            (Self::Bool(b), Value::Null) => b.append_null(),
            (Self::Text(b), Value::Text(v)) => b.append_value(v),
            (Self::Text(b), Value::Null) => b.append_null(),
            (Self::Time(b), Value::Timestamp(v)) => b.append_value(v.micros()),
            (Self::Time(b), Value::LocalTime(v)) => b.append_value(v.0.and_utc().timestamp_micros()),
            (Self::Time(b), Value::Null) => b.append_null(),
            (Self::Other { joined, single }, value) => match one(value, kind) {
                Some(part) => {
                    single.push(part);
                    if single.len() == MOST_SINGLE {
                        joined.push(all(single)?);
                    }
                }
                None => return Ok(false),
            },
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn finish(&mut self, kind: &DataType) -> Result<ArrayRef> {
        Ok(match self {
            Self::Int(b) => Arc::new(b.finish()),
            Self::Float(b) => Arc::new(b.finish()),
            Self::Bool(b) => Arc::new(b.finish()),
            Self::Text(b) => Arc::new(b.finish()),
            Self::Time(b) => Arc::new(b.finish()),
            Self::Other { joined, single } => {
                joined.append(single);
                if joined.is_empty() { new_empty_array(kind) } else { all(joined)? }
            }
        })
    }
}

/// Joins the arrays, and empties `parts`.
fn all(parts: &mut Vec<ArrayRef>) -> Result<ArrayRef> {
    let parts = std::mem::take(parts);
    Ok(concat(&parts.iter().map(AsRef::as_ref).collect::<Vec<_>>())?)
}

/// Whether the types are the same: the fields of a struct have names, while lists and maps may name their elements as they like.
pub(crate) fn same(a: &DataType, b: &DataType) -> bool {
    a.equals_datatype(b) && named_alike(a, b)
}

fn named_alike(a: &DataType, b: &DataType) -> bool {
    let alike = |a: &Fields, b: &Fields| a.iter().zip(b).all(|(a, b)| named_alike(a.data_type(), b.data_type()));
    match (a, b) {
        (DataType::Struct(a), DataType::Struct(b)) => a.iter().zip(b).all(|(a, b)| a.name() == b.name()) && alike(a, b),
        (DataType::Map(a, _), DataType::Map(b, _)) => match (a.data_type(), b.data_type()) {
            (DataType::Struct(a), DataType::Struct(b)) => alike(a, b),
            _ => false,
        },
        _ => elements(a).zip(elements(b)).is_none_or(|(a, b)| named_alike(a.data_type(), b.data_type())),
    }
}

/// The elements of a list or a map.
fn elements(kind: &DataType) -> Option<&FieldRef> {
    match kind {
        DataType::List(field) | DataType::LargeList(field) | DataType::FixedSizeList(field, _) | DataType::Map(field, _) => Some(field),
        _ => None,
    }
}

/// The array with the names of `kind`, which is the same type.
fn renamed(array: &ArrayRef, kind: &DataType) -> ArrayRef {
    let fields = if let DataType::Struct(fields) = kind { fields.iter().collect() } else { Vec::from_iter(elements(kind)) };
    let data = array.to_data();
    let children = data.child_data().iter().zip(fields);
    let children = children.map(|(child, field)| renamed(&make_array(child.clone()), field.data_type()).to_data()).collect();
    // SAFETY: everything but the names is as in the array.
    make_array(unsafe { data.into_builder().data_type(kind.clone()).child_data(children).build_unchecked() })
}

/// An array of this one value; `None` if it does not fit the type.
fn one(value: &Value, kind: &DataType) -> Option<ArrayRef> {
    Some(match (value, kind) {
        (Value::Null, _) => new_null_array(kind, 1),
        (Value::Arrow(array), _) if array.len() == 1 && array.data_type() == kind => array.clone(),
        (Value::Arrow(array), _) if array.len() == 1 && same(array.data_type(), kind) => renamed(array, kind),
        (Value::Int(v), DataType::Int32) => Arc::new(Int32Array::from(vec![i32::try_from(*v).ok()?])),
        (Value::Int(v), DataType::Int16) => Arc::new(Int16Array::from(vec![i16::try_from(*v).ok()?])),
        (Value::Int(v), DataType::Int8) => Arc::new(Int8Array::from(vec![i8::try_from(*v).ok()?])),
        (Value::UInt(v), DataType::UInt64) => Arc::new(UInt64Array::from(vec![*v])),
        (Value::Int(v), DataType::UInt64) => Arc::new(UInt64Array::from(vec![u64::try_from(*v).ok()?])),
        (Value::Int(v), DataType::UInt32) => Arc::new(UInt32Array::from(vec![u32::try_from(*v).ok()?])),
        (Value::Int(v), DataType::UInt16) => Arc::new(UInt16Array::from(vec![u16::try_from(*v).ok()?])),
        (Value::Int(v), DataType::UInt8) => Arc::new(UInt8Array::from(vec![u8::try_from(*v).ok()?])),
        (Value::Float(v), DataType::Float32) => Arc::new(Float32Array::from(vec![*v as f32])),
        (Value::Text(v), DataType::LargeUtf8) => Arc::new(LargeStringArray::from(vec![v.as_str()])),
        (Value::Binary(v), DataType::Binary) => Arc::new(BinaryArray::from(vec![v.as_slice()])),
        (Value::Binary(v), DataType::LargeBinary) => Arc::new(LargeBinaryArray::from(vec![v.as_slice()])),
        (Value::Date(v), DataType::Date32) => Arc::new(Date32Array::from(vec![Date32Type::from_naive_date(v.0)])),
        (Value::Decimal(v), DataType::Decimal128(precision, scale)) => {
            let number = Decimal128Array::from(vec![v.unscaled(*scale)?]).with_precision_and_scale(*precision, *scale).ok()?;
            number.validate_decimal_precision(*precision).ok()?;
            Arc::new(number)
        }
        _ => return None,
    })
}
