//! States and keys as MessagePack, in the profile of docs/operator-protocol.md. A state is a [`State`], or a struct that derives
//! `Serialize` and `Deserialize`, with the types of this crate for times, dates and decimals.

use std::collections::BTreeMap;
use std::fmt;

use chrono::{DateTime, Datelike, NaiveDate};
use rmp_serde::MSGPACK_EXT_STRUCT_NAME;
use serde::de::{self, DeserializeOwned, MapAccess, SeqAccess, Visitor};
use serde::ser::{self, Serializer};
use serde::{Deserialize, Deserializer, Serialize};

use crate::value::within_years;
use crate::{Date, Decimal, LocalTime, Result, Timestamp, Value};

/// The state of a key as a map.
pub type State = BTreeMap<String, Value>;

// MessagePack's own extension for times, then those of the profile.
const TIME: i8 = -1;
const LOCAL_TIME: i8 = 1;
const DATE: i8 = 2;
const DECIMAL: i8 = 3;
// The number of bits that hold the seconds in the 8-byte form of MessagePack's times.
const SECONDS_BITS: u32 = 34;

/// Converts a state to the form that the engine stores.
pub fn pack<S: Serialize + ?Sized>(state: &S) -> Result<Vec<u8>> {
    Ok(rmp_serde::to_vec_named(state)?)
}

/// Reads a state from its stored form.
pub fn unpack<S: DeserializeOwned>(packed: &[u8]) -> Result<S> {
    Ok(rmp_serde::from_slice(packed)?)
}

// writing ------------------------------------------------------------------------------------------------------------------

struct Bytes(Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        s.serialize_bytes(&self.0)
    }
}

fn extension<S: Serializer>(s: S, tag: i8, data: impl Into<Vec<u8>>) -> std::result::Result<S::Ok, S::Error> {
    s.serialize_newtype_struct(MSGPACK_EXT_STRUCT_NAME, &(tag, Bytes(data.into())))
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        within_years(&self.0).map_err(ser::Error::custom)?;
        let (seconds, ns) = (self.0.timestamp(), self.0.timestamp_subsec_nanos());
        if let (0, Ok(short)) = (ns, u32::try_from(seconds)) {
            return extension(s, TIME, short.to_be_bytes());
        }
        match u64::try_from(seconds) {
            Ok(seconds) if seconds >> SECONDS_BITS == 0 => extension(s, TIME, (u64::from(ns) << SECONDS_BITS | seconds).to_be_bytes()),
            _ => extension(s, TIME, [&ns.to_be_bytes()[..], &seconds.to_be_bytes()].concat()),
        }
    }
}

impl Serialize for LocalTime {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        within_years(&self.0).map_err(ser::Error::custom)?;
        extension(s, LOCAL_TIME, self.0.and_utc().timestamp_micros().to_be_bytes())
    }
}

impl Serialize for Date {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        within_years(&self.0).map_err(ser::Error::custom)?;
        extension(s, DATE, self.0.num_days_from_ce().to_be_bytes())
    }
}

impl Serialize for Decimal {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        if !self.is_number() {
            return Err(ser::Error::custom(format!("expected the digits of a decimal, as in 12.50, got {:?}", self.0)));
        }
        extension(s, DECIMAL, self.0.as_bytes())
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        match self {
            Self::Null => s.serialize_unit(),
            Self::Bool(v) => s.serialize_bool(*v),
            Self::Int(v) => s.serialize_i64(*v),
            Self::UInt(v) => s.serialize_u64(*v),
            Self::Float(v) => s.serialize_f64(*v),
            Self::Text(v) => s.serialize_str(v),
            Self::Binary(v) => s.serialize_bytes(v),
            Self::Timestamp(v) => v.serialize(s),
            Self::LocalTime(v) => v.serialize(s),
            Self::Date(v) => v.serialize(s),
            Self::Decimal(v) => v.serialize(s),
            Self::List(v) => s.collect_seq(v),
            Self::Map(v) => s.collect_map(v),
            Self::Arrow(_) => Err(ser::Error::custom(format!("a state cannot hold {}", self.kind()))),
        }
    }
}

// reading ------------------------------------------------------------------------------------------------------------------

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        struct Bytewise;
        impl Visitor<'_> for Bytewise {
            type Value = Bytes;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("the bytes of an extension")
            }
            fn visit_bytes<E: de::Error>(self, v: &[u8]) -> std::result::Result<Bytes, E> {
                Ok(Bytes(v.to_vec()))
            }
        }
        d.deserialize_bytes(Bytewise)
    }
}

/// A name in a map. Unlike for `String`, bytes are refused: keys that only Python has would be written as text.
struct Name(String);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        struct Named;
        impl Visitor<'_> for Named {
            type Value = Name;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a map from text")
            }
            fn visit_str<E: de::Error>(self, v: &str) -> std::result::Result<Name, E> {
                Ok(Name(v.to_string()))
            }
        }
        d.deserialize_str(Named)
    }
}

struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a value of a state")
    }

    fn visit_unit<E>(self) -> std::result::Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, v: bool) -> std::result::Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> std::result::Result<Value, E> {
        Ok(Value::Int(v))
    }

    fn visit_u64<E>(self, v: u64) -> std::result::Result<Value, E> {
        Ok(v.into())
    }

    fn visit_f64<E>(self, v: f64) -> std::result::Result<Value, E> {
        Ok(Value::Float(v))
    }

    fn visit_str<E>(self, v: &str) -> std::result::Result<Value, E> {
        Ok(Value::Text(v.to_string()))
    }

    fn visit_bytes<E>(self, v: &[u8]) -> std::result::Result<Value, E> {
        Ok(Value::Binary(v.to_vec()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = seq.next_element()? {
            list.push(value);
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Value, A::Error> {
        let mut found = State::new();
        while let Some((Name(name), value)) = map.next_entry()? {
            found.insert(name, value);
        }
        Ok(Value::Map(found))
    }

    // An extension.
    fn visit_newtype_struct<D: Deserializer<'de>>(self, d: D) -> std::result::Result<Value, D::Error> {
        let (tag, Bytes(data)) = Deserialize::deserialize(d)?;
        extended(tag, &data)
            .ok_or_else(|| de::Error::custom(format!("a state of an unknown kind: extension {tag} of {} bytes", data.len())))
    }
}

fn extended(tag: i8, data: &[u8]) -> Option<Value> {
    Some(match (tag, data.len()) {
        (TIME, 4) => Value::Timestamp(Timestamp(DateTime::from_timestamp(u32::from_be_bytes(data.try_into().ok()?).into(), 0)?)),
        (TIME, 8) => {
            let both = u64::from_be_bytes(data.try_into().ok()?);
            let seconds = both & ((1 << SECONDS_BITS) - 1);
            Value::Timestamp(Timestamp(DateTime::from_timestamp(seconds as i64, (both >> SECONDS_BITS) as u32)?))
        }
        (TIME, 12) => {
            let ns = u32::from_be_bytes(data[..4].try_into().ok()?);
            Value::Timestamp(Timestamp(DateTime::from_timestamp(i64::from_be_bytes(data[4..].try_into().ok()?), ns)?))
        }
        (LOCAL_TIME, 8) => {
            Value::LocalTime(LocalTime(DateTime::from_timestamp_micros(i64::from_be_bytes(data.try_into().ok()?))?.naive_utc()))
        }
        (DATE, 4) => Value::Date(Date(NaiveDate::from_num_days_from_ce_opt(i32::from_be_bytes(data.try_into().ok()?))?)),
        (DECIMAL, _) => Value::Decimal(Decimal(std::str::from_utf8(data).ok()?.to_string())),
        _ => return None,
    })
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        d.deserialize_any(Any)
    }
}

macro_rules! by_value {
    ($($name:ident),*) => {$(
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
                match Value::deserialize(d)? {
                    Value::$name(v) => Ok(v),
                    other => Err(de::Error::custom(format!("expected a {}, the state has {}", stringify!($name), other.kind()))),
                }
            }
        }
    )*};
}
by_value!(Timestamp, LocalTime, Date, Decimal);
