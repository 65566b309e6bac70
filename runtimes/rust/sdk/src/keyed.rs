//! Keys and their states, in the tables that the engine sends and gets back.

use std::borrow::Cow;
use std::ops::{Index, IndexMut};
use std::sync::{Arc, LazyLock};

use arrow_array::builder::{BinaryBuilder, Int32Builder, Int64Builder};
use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::value::within_years;
use crate::{Error, Result, Timestamp, Value, pack, unpack};

/// The key of an event: its state and its timers.
pub struct Key<'a> {
    packed: &'a [u8],
    state: Option<Cow<'a, [u8]>>,
    expires_us: Option<i64>,
    changed: bool,
    timers_us: Vec<i64>,
}

impl Key<'_> {
    /// The value of the key column, or a list of the values of several.
    pub fn value(&self) -> Result<Value> {
        unpack(self.packed)
    }

    /// The key's state, as a struct that derives `Deserialize` or a [`State`](crate::State); `None` if it has none.
    pub fn state<S: DeserializeOwned>(&self) -> Result<Option<S>> {
        self.state.as_deref().map(unpack).transpose()
    }

    /// Replaces the key's state, by a struct that derives `Serialize` or a [`State`](crate::State).
    pub fn set_state<S: Serialize + ?Sized>(&mut self, state: &S) -> Result {
        let packed = pack(state)?;
        // The first bytes of MessagePack's maps: of up to 15 entries, of up to 2^16 - 1, and of more.
        if !matches!(packed.first(), Some(0x80..=0x8f | 0xde | 0xdf)) {
            return Err(Error::new(format!("a state is a struct or a map from text, not a {}", std::any::type_name::<S>())));
        }
        self.state = Some(Cow::Owned(packed));
        self.changed = true;
        Ok(())
    }

    /// Drops the key's state and its expiry.
    pub fn clear(&mut self) {
        (self.state, self.expires_us, self.changed) = (None, None, true);
    }

    /// Sets a timer: [`on_timer`](crate::Timed::on_timer) is called for this key at the end of the first epoch whose watermark has
    /// reached `at`. Setting a timer for the same time again changes nothing.
    ///
    /// # Panics
    /// Panics, which fails the event, if `at` is not in the years 1 to 9999.
    pub fn timer(&mut self, at: Timestamp) {
        self.timers_us.push(micros(at, "a timer"));
    }

    /// Drops the key's state at the end of the first epoch whose watermark has reached `at`; a later call replaces the time.
    ///
    /// # Panics
    /// Panics, which fails the event, if `at` is not in the years 1 to 9999.
    pub fn expire(&mut self, at: Timestamp) {
        (self.expires_us, self.changed) = (Some(micros(at, "an expiration")), true);
    }
}

fn micros(at: Timestamp, what: &str) -> i64 {
    within_years(&at.0).unwrap_or_else(|why| panic!("{what}: {why}"));
    at.micros()
}

/// The keys of a batch, each once: `keys[n]`. The key of row i is `keys[keys.rows()[i]]`.
pub struct Keys<'a> {
    pub(crate) rows: &'a [usize],
    pub(crate) keys: Vec<Key<'a>>,
}

impl<'a> Keys<'a> {
    /// The number of each row's key.
    pub fn rows(&self) -> &'a [usize] {
        self.rows
    }

    /// All keys, by their number.
    pub fn iter(&self) -> std::slice::Iter<'_, Key<'a>> {
        self.keys.iter()
    }

    /// All keys, by their number; mutable.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, Key<'a>> {
        self.keys.iter_mut()
    }
}

impl<'a> Index<usize> for Keys<'a> {
    type Output = Key<'a>;
    fn index(&self, n: usize) -> &Key<'a> {
        &self.keys[n]
    }
}

impl<'a> IndexMut<usize> for Keys<'a> {
    fn index_mut(&mut self, n: usize) -> &mut Key<'a> {
        &mut self.keys[n]
    }
}

// tables of the protocol itself ------------------------------------------------------------------------------------------------

fn table(columns: &[(&str, DataType)]) -> SchemaRef {
    Arc::new(Schema::new(columns.iter().map(|(name, kind)| Field::new(*name, kind.clone(), true)).collect::<Vec<_>>()))
}

pub(crate) static INDEX: LazyLock<SchemaRef> = LazyLock::new(|| table(&[("key", DataType::Int32)]));
pub(crate) static KEYS: LazyLock<SchemaRef> =
    LazyLock::new(|| table(&[("key", DataType::Binary), ("state", DataType::Binary), ("expires_us", DataType::Int64)]));
pub(crate) static STATES: LazyLock<SchemaRef> =
    LazyLock::new(|| table(&[("key", DataType::Int32), ("state", DataType::Binary), ("expires_us", DataType::Int64)]));
pub(crate) static TIMES: LazyLock<SchemaRef> = LazyLock::new(|| table(&[("key", DataType::Int32), ("at_us", DataType::Int64)]));

/// The keys in a table KEYS.
pub(crate) fn touched(batch: &RecordBatch) -> Vec<Key<'_>> {
    let (keys, states) = (batch.column(0).as_binary::<i32>(), batch.column(1).as_binary::<i32>());
    let expires = batch.column(2).as_primitive::<Int64Type>();
    let key = |n| Key {
        packed: keys.value(n),
        state: states.is_valid(n).then(|| Cow::Borrowed(states.value(n))),
        expires_us: expires.is_valid(n).then(|| expires.value(n)),
        changed: false,
        timers_us: Vec::new(),
    };
    (0..batch.num_rows()).map(key).collect()
}

/// The column `key` of INDEX or DUE: numbers below `count`.
pub(crate) fn numbers(batch: &RecordBatch, count: usize) -> Result<Vec<usize>> {
    let number = |&n: &i32| usize::try_from(n).ok().filter(|&n| n < count);
    let found = batch.column(0).as_primitive::<Int32Type>().values().iter().map(number).collect::<Option<_>>();
    found.ok_or_else(|| Error::new("an event's key is not among those sent"))
}

/// The table STATES of an answer; `all`: including unchanged states.
pub(crate) fn changes(keys: &[Key], all: bool) -> Result<RecordBatch> {
    let (mut number, mut state, mut expires) = (Int32Builder::new(), BinaryBuilder::new(), Int64Builder::new());
    for (n, key) in keys.iter().enumerate().filter(|(_, key)| all || key.changed) {
        number.append_value(n as i32);
        state.append_option(key.state.as_deref());
        expires.append_option(key.expires_us);
    }
    batch(&STATES, vec![Arc::new(number.finish()), Arc::new(state.finish()), Arc::new(expires.finish())])
}

/// The table SET of an answer.
pub(crate) fn timers(keys: &[Key]) -> Result<RecordBatch> {
    let (mut number, mut at) = (Int32Builder::new(), Int64Builder::new());
    for (n, key) in keys.iter().enumerate() {
        for us in &key.timers_us {
            number.append_value(n as i32);
            at.append_value(*us);
        }
    }
    batch(&TIMES, vec![Arc::new(number.finish()), Arc::new(at.finish())])
}

fn batch(schema: &SchemaRef, columns: Vec<ArrayRef>) -> Result<RecordBatch> {
    Ok(RecordBatch::try_new(schema.clone(), columns)?)
}
