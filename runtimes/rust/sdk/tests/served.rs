//! The answers of a served operator, and its refusals. This program starts itself again as the operator, and plays the engine's part.

mod engine;

use std::env;
use std::sync::Arc;

use arrow_array::builder::{Int64Builder, ListBuilder, MapBuilder, MapFieldNames, StringBuilder, StructBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::{Decimal128Type, Float64Type, UInt64Type};
use arrow_array::{Array, ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray, StructArray};
use arrow_array::{UInt8Array, UInt16Array, UInt32Array, UInt64Array};
use arrow_buffer::NullBuffer;
use arrow_schema::{DataType, Field, Fields};
use udo_operator::chrono::{DateTime, NaiveDate};
use udo_operator::*;

use engine::pb::Timers;
use engine::pb::message::Kind;
use engine::pb::part::Table;
use engine::{Engine, one_key};

const LONG: usize = 2_000_000;
// The start of the year 10000, in µs since 1970.
const BEYOND_US: i64 = 253_402_300_800_000_000;

/// Answers with no events, and emits one.
struct Emits;

impl Batches for Emits {
    fn process(&mut self, _: &RecordBatch, ctx: &mut Context) -> Result<RecordBatch> {
        ctx.emit(row! {"v": 7})?;
        Ok(RecordBatch::new_empty(ctx.output.clone()))
    }
}

impl KeyedBatches for Emits {
    fn process(&mut self, _: &RecordBatch, _: &mut Keys, ctx: &mut Context) -> Result<RecordBatch> {
        ctx.emit(row! {"v": 7})?;
        Ok(RecordBatch::new_empty(ctx.output.clone()))
    }
}

impl Timed for Emits {
    fn on_timer(&mut self, _: Timestamp, _: &mut Key, _: &mut Context) -> Result {
        Ok(())
    }
}

struct Forward;

impl Batches for Forward {
    fn process(&mut self, batch: &RecordBatch, _: &mut Context) -> Result<RecordBatch> {
        Ok(batch.clone())
    }
}

/// Answers each value as it came.
struct Each;

impl Events for Each {
    fn process(&mut self, event: Event, ctx: &mut Context) -> Result {
        ctx.emit(row! {"v": event.value("v")?})
    }
}

/// Answers each integer as it is read.
struct Signed;

impl Events for Signed {
    fn process(&mut self, event: Event, ctx: &mut Context) -> Result {
        ctx.emit(row! {"v": event.get::<i64>("v")?})
    }
}

/// The same, without a sign.
struct Unsigned;

impl Events for Unsigned {
    fn process(&mut self, event: Event, ctx: &mut Context) -> Result {
        ctx.emit(row! {"v": event.get::<u64>("v")?})
    }
}

/// Answers each text as a decimal.
struct Decimals;

impl Events for Decimals {
    fn process(&mut self, event: Event, ctx: &mut Context) -> Result {
        ctx.emit(row! {"v": Decimal(event.get::<&str>("v")?.to_string())})
    }
}

/// Fails, or logs, with a long text.
struct Long;

impl Events for Long {
    fn process(&mut self, event: Event, ctx: &mut Context) -> Result {
        let text = format!("<{}>", "ü".repeat(LONG));
        match event.get("v")? {
            "error" => Err(Error::new(text)),
            "panic" => panic!("{text}"),
            "schema" => ctx.emit(row! {"v": text}),
            "log" => {
                log::info!("{text}");
                ctx.emit(row! {"v": 1})
            }
            _ => ctx.emit(row! {"v": 1}),
        }
    }
}

/// Uses times of the year 10000.
struct Beyond;

impl Keyed for Beyond {
    fn process(&mut self, event: Event, key: &mut Key, ctx: &mut Context) -> Result {
        let at = Timestamp::from_micros(BEYOND_US)?;
        match event.get("v")? {
            "timer" => key.timer(at),
            "expire" => key.expire(at),
            "state" => key.set_state(&State::from([("at".to_string(), at.into())]))?,
            _ => key.timer(Timestamp::from_micros(BEYOND_US - 1)?),
        }
        ctx.emit(row! {"v": 1})
    }
}

impl Timed for Beyond {
    fn on_timer(&mut self, _: Timestamp, _: &mut Key, _: &mut Context) -> Result {
        Ok(())
    }
}

/// Not a test: the operator, in a process that `Engine::start` starts.
#[test]
fn operator() {
    match env::var("UDO_TEST_ROLE").as_deref() {
        Ok("emits") => batches(Emits).run(),
        Ok("keyed emits") => keyed_batches(Emits).timed().run(),
        Ok("forward") => batches(Forward).run(),
        Ok("each") => events(Each).run(),
        Ok("signed") => events(Signed).run(),
        Ok("unsigned") => events(Unsigned).run(),
        Ok("decimals") => events(Decimals).run(),
        Ok("long") => events(Long).run(),
        Ok("beyond") => keyed(Beyond).timed().run(),
        _ => {}
    }
}

fn texts(texts: &[&str]) -> ArrayRef {
    Arc::new(StringArray::from(texts.to_vec()))
}

#[test]
fn what_a_vectorised_operator_emits_is_a_failure_and_comes_out_in_no_other_answer() {
    for role in ["emits", "keyed emits"] {
        let mut engine = Engine::start(role, DataType::Int64, DataType::Int64);
        let failure = engine.data(Arc::new(Int64Array::from(vec![1]))).expect_err(role);
        assert!(failure.message.contains("and 1 were emitted: add them to the batch"), "{}", failure.message);
        if role == "keyed emits" {
            let (key, at): (ArrayRef, ArrayRef) = (Arc::new(Int32Array::from(vec![0])), Arc::new(Int64Array::from(vec![5])));
            let due = RecordBatch::try_from_iter([("key", key), ("at_us", at)]).unwrap();
            let timers = Kind::Timers(Timers { watermark_us: 10 });
            let rows = engine.replied(timers, vec![(Table::Due, due), (Table::Keys, one_key())]).unwrap();
            assert_eq!(rows.num_rows(), 0);
        }
    }
}

/// A struct of integers with these names: null, then one value, then null.
fn structs(names: [&str; 2]) -> ArrayRef {
    let fields: Fields = names.iter().map(|name| Field::new(*name, DataType::Int64, true)).collect();
    let values: ArrayRef = Arc::new(Int64Array::from(vec![None, Some(7), None]));
    Arc::new(StructArray::new(fields, vec![values.clone(), values], Some(NullBuffer::from(vec![false, true, false]))))
}

/// The same as lists.
fn listed(structs: &ArrayRef) -> DataType {
    DataType::new_list(structs.data_type().clone(), true)
}

#[test]
fn a_struct_with_its_fields_in_another_order_is_a_failure_of_code_schema() {
    let (given, wanted) = (structs(["a", "b"]), structs(["b", "a"]));
    for role in ["forward", "each"] {
        let mut engine = Engine::start(role, given.data_type().clone(), wanted.data_type().clone());
        let failure = engine.data(given.clone()).expect_err(role);
        let row = if role == "each" { Some(1) } else { None };
        assert_eq!((failure.code.as_str(), failure.row), ("schema", row), "{role}: {}", failure.message);
        let mut engine = Engine::start(role, listed(&given), listed(&wanted));
        let mut lists = ListBuilder::new(StructBuilder::from_fields(inside(&given), 0));
        lists.append(true);
        assert_eq!(engine.data(Arc::new(lists.finish())).expect_err(role).code, "schema");
    }
}

fn inside(structs: &ArrayRef) -> Fields {
    structs.as_struct().fields().clone()
}

#[test]
fn lists_and_maps_may_name_their_elements_as_they_like() {
    let mut lists = ListBuilder::new(Int64Builder::new()).with_field(Field::new("element", DataType::Int64, true));
    lists.append_value([Some(1), None]);
    lists.append_null();
    let names = MapFieldNames { entry: "e".to_string(), key: "k".to_string(), value: "v".to_string() };
    let mut maps = MapBuilder::new(Some(names), StringBuilder::new(), Int64Builder::new());
    let mut usual = MapBuilder::new(None, StringBuilder::new(), Int64Builder::new());
    for text in ["x", "ü"] {
        maps.keys().append_value(text);
        maps.values().append_value(7);
    }
    maps.append(true).unwrap();
    maps.append(false).unwrap();
    let usual = usual.finish().data_type().clone();
    let given: [(ArrayRef, DataType); 2] =
        [(Arc::new(lists.finish()), DataType::new_list(DataType::Int64, true)), (Arc::new(maps.finish()), usual)];
    for (given, wanted) in given {
        for role in ["forward", "each"] {
            let mut engine = Engine::start(role, given.data_type().clone(), wanted.clone());
            let rows = engine.data(given.clone()).unwrap_or_else(|failure| panic!("{role}: {}", failure.message));
            let shown = |column: &ArrayRef| format!("{:?}", column.slice(0, 1)).split_once('\n').unwrap().1.to_string();
            let values = |column: &ArrayRef| shown(column).replace("\"k\"", "\"key\"").replace("\"v\"", "\"value\"");
            assert_eq!((rows.num_rows(), rows.column(0).is_null(1)), (2, true));
            assert_eq!(values(rows.column(0)), values(&given), "{role}");
        }
    }
}

#[test]
fn an_integer_that_is_no_double_does_not_fit_a_column_of_doubles() {
    let whole = 1 << 53;
    let mut engine = Engine::start("each", DataType::Int64, DataType::Float64);
    let rows = engine.data(Arc::new(Int64Array::from(vec![whole, -whole]))).unwrap();
    assert_eq!(rows.column(0).as_primitive::<Float64Type>().values(), &[whole as f64, -whole as f64]);
    for beyond in [whole + 1, -whole - 1, i64::MIN] {
        let failure = engine.data(Arc::new(Int64Array::from(vec![0, beyond]))).expect_err("rounded");
        assert_eq!((failure.code.as_str(), failure.row), ("schema", Some(1)), "{}", failure.message);
    }
}

/// 0, null and the largest value of an unsigned type.
fn unsigned(kind: &DataType) -> (ArrayRef, u64) {
    match kind {
        DataType::UInt8 => (Arc::new(UInt8Array::from(vec![Some(0), None, Some(u8::MAX)])), u8::MAX.into()),
        DataType::UInt16 => (Arc::new(UInt16Array::from(vec![Some(0), None, Some(u16::MAX)])), u16::MAX.into()),
        DataType::UInt32 => (Arc::new(UInt32Array::from(vec![Some(0), None, Some(u32::MAX)])), u32::MAX.into()),
        _ => (Arc::new(UInt64Array::from(vec![Some(0), None, Some(u64::MAX)])), u64::MAX),
    }
}

#[test]
fn unsigned_integers_are_read_and_answered_as_integers() {
    for kind in [DataType::UInt8, DataType::UInt16, DataType::UInt32, DataType::UInt64] {
        let (given, most) = unsigned(&kind);
        let rows = Engine::start("each", kind.clone(), kind.clone()).data(given.clone()).unwrap();
        assert_eq!(rows.column(0), &given);
        let rows = Engine::start("unsigned", kind.clone(), DataType::UInt64).data(given.slice(2, 1)).unwrap();
        assert_eq!(rows.column(0).as_primitive::<UInt64Type>().values(), &[most]);
        let (mut engine, beyond) = (Engine::start("signed", kind.clone(), kind.clone()), i64::try_from(most).is_err());
        let answered = engine.data(given.slice(2, 1));
        assert_eq!(answered.as_ref().err().map(|failure| failure.message.contains("beyond i64: read it as u64")), beyond.then_some(true));
    }
    for (kind, beyond) in [(DataType::UInt8, 256), (DataType::UInt16, 1 << 16), (DataType::UInt32, 1 << 32), (DataType::UInt64, -1)] {
        let failure = Engine::start("each", DataType::Int64, kind).data(Arc::new(Int64Array::from(vec![0, beyond]))).expect_err("cut");
        assert_eq!((failure.code.as_str(), failure.row), ("schema", Some(1)), "{}", failure.message);
    }
    let mut engine = Engine::start("unsigned", DataType::Int64, DataType::UInt64);
    let failure = engine.data(Arc::new(Int64Array::from(vec![1]))).expect_err("signed");
    assert!(failure.message.contains("is Int64, not an unsigned integer"), "{}", failure.message);
}

#[test]
fn a_decimal_has_digits_and_may_have_zeros_at_its_end() {
    let mut engine = Engine::start("decimals", DataType::Utf8, DataType::Decimal128(5, 1));
    let rows = engine.data(texts(&["1.50", "-.5", "2.", "+3", "0.0000", "100"])).unwrap();
    assert_eq!(rows.column(0).as_primitive::<Decimal128Type>().values(), &[15, -5, 20, 30, 0, 1000]);
    for text in ["", ".", "-", "+", "-.", "1.25", "NaN", "1e1", "12345.0", " 1"] {
        let failure = engine.data(texts(&["1", text])).expect_err(text);
        assert_eq!((failure.code.as_str(), failure.row), ("schema", Some(1)), "{text:?}: {}", failure.message);
    }
}

#[test]
fn an_error_or_a_log_line_of_megabytes_is_cut() {
    let mut engine = Engine::start("long", DataType::Utf8, DataType::Int64);
    for what in ["error", "panic", "schema"] {
        let failure = engine.data(texts(&["none", what])).expect_err(what);
        assert!(failure.message.contains("ü … 1984") && failure.message.contains(" characters cut … ü"), "{what}");
        assert!(failure.message.contains('<') && failure.message.contains('>') && failure.message.chars().count() < 16_000);
        assert_eq!(failure.row, Some(1));
        assert_eq!(failure.code == "schema", what == "schema");
    }
    assert_eq!(engine.data(texts(&["log"])).unwrap().num_rows(), 1);
    assert!(engine.logs[0].starts_with("<ü") && engine.logs[0].ends_with("ü>") && engine.logs[0].chars().count() <= 64_000);
}

#[test]
fn a_time_that_is_not_in_the_years_1_to_9999_fails_its_event() {
    let mut engine = Engine::start("beyond", DataType::Utf8, DataType::Int64);
    for what in ["timer", "expire", "state"] {
        let failure = engine.data(texts(&["last", what])).expect_err(what);
        assert!(failure.message.contains("of the years 1 to 9999, got +10000-01-01T00:00:00"), "{what}: {}", failure.message);
        assert_eq!(failure.row, Some(1));
    }
    assert_eq!(engine.data(texts(&["last"])).unwrap().num_rows(), 1);
}

#[test]
fn what_no_language_can_read_is_refused_in_a_state() {
    let day = |year| NaiveDate::from_ymd_opt(year, 1, 1).unwrap();
    for year in [0, 10_000] {
        assert!(pack(&Date(day(year))).is_err());
        assert!(pack(&LocalTime(day(year).into())).is_err());
        assert!(pack(&Timestamp(day(year).and_hms_opt(0, 0, 0).unwrap().and_utc())).is_err());
    }
    for us in [BEYOND_US - 1, -62_135_596_800_000_000] {
        let at = DateTime::from_timestamp_micros(us).unwrap();
        let read: Timestamp = unpack(&pack(&Timestamp(at)).unwrap()).unwrap();
        assert_eq!(read.micros(), us);
        assert!(pack(&LocalTime(at.naive_utc())).is_ok() && pack(&Date(at.date_naive())).is_ok());
    }
    for text in ["", "-", ".", "twelve"] {
        assert!(pack(&Decimal(text.to_string())).is_err(), "{text:?}");
    }
    for text in ["12.50", "-0.5", "1E+5", "NaN"] {
        assert!(pack(&Decimal(text.to_string())).is_ok(), "{text:?}");
    }
}
