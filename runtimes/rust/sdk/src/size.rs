//! A lower bound of the bytes of values in a record batch: bits and validity bitmaps are left out.

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;

use crate::Value;

/// The fixed bytes of each value of the type.
pub(crate) fn fixed(kind: &DataType) -> usize {
    match kind {
        DataType::Utf8 | DataType::Binary | DataType::List(_) | DataType::Map(..) => 4,
        DataType::LargeUtf8 | DataType::LargeBinary | DataType::LargeList(_) => 8,
        DataType::FixedSizeBinary(bytes) => *bytes as usize,
        DataType::FixedSizeList(field, count) => *count as usize * fixed(field.data_type()),
        DataType::Struct(fields) => fields.iter().map(|field| fixed(field.data_type())).sum(),
        other => other.primitive_width().unwrap_or(0),
    }
}

/// The value's bytes beyond the fixed ones.
pub(crate) fn varied(value: &Value) -> usize {
    match value {
        Value::Text(v) => v.len(),
        Value::Binary(v) => v.len(),
        Value::Arrow(array) => below(array),
        _ => 0,
    }
}

/// The bytes of all values of an array beyond the fixed ones.
fn below(array: &ArrayRef) -> usize {
    let elements = |list: Option<ArrayRef>| list.map_or(0, |list| list.len() * fixed(list.data_type()) + below(&list));
    match array.data_type() {
        DataType::Utf8 => array.as_string::<i32>().iter().flatten().map(str::len).sum(),
        DataType::LargeUtf8 => array.as_string::<i64>().iter().flatten().map(str::len).sum(),
        DataType::Binary => array.as_binary::<i32>().iter().flatten().map(<[u8]>::len).sum(),
        DataType::LargeBinary => array.as_binary::<i64>().iter().flatten().map(<[u8]>::len).sum(),
        DataType::List(_) => array.as_list::<i32>().iter().map(elements).sum(),
        DataType::LargeList(_) => array.as_list::<i64>().iter().map(elements).sum(),
        DataType::Map(..) => array.as_map().iter().map(|entries| elements(entries.map(|e| std::sync::Arc::new(e) as ArrayRef))).sum(),
        DataType::FixedSizeList(..) => below(array.as_fixed_size_list().values()),
        DataType::Struct(_) => array.as_struct().columns().iter().map(below).sum(),
        _ => 0,
    }
}
