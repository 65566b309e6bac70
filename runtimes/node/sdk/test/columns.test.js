import assert from "node:assert/strict";
import {test} from "node:test";

import * as arrow from "apache-arrow";

import {SchemaError, batchOf, values} from "../src/columns.js";
import {Decimal, Duration, Instant, LocalDate, LocalDateTime, LocalTime} from "../src/values.js";

const {DataType, Field, Schema, TimeUnit} = arrow;
const POINT = new arrow.Struct([new Field("x", new arrow.Int64(), true), new Field("y", new arrow.Utf8(), true)]);

function mapOf(key, value) {
  const entry = new arrow.Struct([new Field("key", key, false), new Field("value", value, true)]);
  return new arrow.Map_(new Field("entries", entry, false));
}

/** The values read back from a column that these were written to. */
function through(type, ...column) {
  const batch = batchOf(new Schema([new Field("c", type, true)]), column.map((c) => ({c})));
  return values(batch.getChildAt(0));
}

function refused(type, ...column) {
  const isSchemaError = (e) => e instanceof SchemaError && e.row === 0;
  for (const v of column) assert.throws(() => through(type, v), isSchemaError, `${type}: a ${v?.constructor.name}`);
}

test("text keeps a U+FEFF at its beginning", () => {
  for (const type of [new arrow.Utf8(), new arrow.LargeUtf8()]) {
    assert.deepEqual(through(type, "\ufeffa", null, "", "\ufeff", "ü"), ["\ufeffa", null, "", "\ufeff", "ü"]);
  }
});

test("text with half of a surrogate pair is refused", () => refused(new arrow.Utf8(), "a\ud83d", "\ude00"));

test("a struct is an object, of any class", () => {
  class Point { x = 1n; y = "a"; }
  assert.deepEqual(through(POINT, {x: 1n, y: "a"}, new Point(), null, {x: 2n}), [{x: 1n, y: "a"}, {x: 1n, y: "a"}, null, {x: 2n, y: null}]);
  refused(POINT, new Map([["x", 1n]]), [1n, "a"], '{"x": 1}', 1n, true, new Uint8Array(2), new Date(), new LocalDate(1), new Decimal("1"));
});

test("numbers that would wrap, be cut or be rounded are refused", () => {
  refused(new arrow.DateDay(), new LocalDate(NaN), new LocalDate(1.5), new LocalDate(2 ** 31), new LocalDate(undefined));
  refused(new arrow.DateMillisecond(), new LocalDate(NaN), new LocalDate(1.5), new LocalDate(2 ** 60));
  const year2300 = new Instant(10_413_792_000_000_000_000n);
  assert.equal(through(new arrow.Timestamp(TimeUnit.MICROSECOND, "UTC"), year2300)[0].ns, year2300.ns);
  refused(new arrow.Timestamp(TimeUnit.NANOSECOND, "UTC"), year2300, new Date(NaN));
  refused(new arrow.Timestamp(TimeUnit.NANOSECOND), new LocalDateTime(-(2n ** 63n) - 1n));
  refused(new arrow.Duration(TimeUnit.NANOSECOND), new Duration(2n ** 63n));
  refused(new arrow.TimeMillisecond(), new LocalTime(-1n), new LocalTime(86_400_000_000_000n), new LocalTime(2n ** 60n));
  refused(new arrow.TimeNanosecond(), new LocalTime(86_400_000_000_000n));
  assert.equal(through(new arrow.TimeNanosecond(), new LocalTime(86_399_999_999_999n))[0].ns, 86_399_999_999_999n);
});

test("an integer that a floating point column would round is refused", () => {
  const most = {[arrow.Precision.SINGLE]: 2n ** 24n, [arrow.Precision.DOUBLE]: 2n ** 53n};
  for (const type of [new arrow.Float32(), new arrow.Float64()]) {
    const bound = most[type.precision];
    assert.deepEqual(through(type, bound, -bound, 1n, 0.5), [Number(bound), -Number(bound), 1, 0.5]);
    refused(type, bound + 1n, -bound - 1n, 2n ** 63n, 10n ** 400n);
  }
  assert.deepEqual(through(new arrow.Float64(), 1e300, NaN), [1e300, NaN]);
});

test("decimals of a negative scale keep their value", () => {
  const type = new arrow.Decimal(-2, 5, 128);
  assert.ok(DataType.isDecimal(type) && type.scale === -2);
  assert.deepEqual(through(type, new Decimal("12300"), new Decimal("-12300.00"), new Decimal("0")).map(String), ["12300", "-12300", "0"]);
  refused(type, new Decimal("12345"), new Decimal("12300.01"), new Decimal("12345678"), new Decimal(""), new Decimal("-"));
});

test("a map that JavaScript cannot hold is refused, and others are read as written", () => {
  const text = mapOf(new arrow.Utf8(), new arrow.Int64()), number = mapOf(new arrow.Float64(), new arrow.Int64());
  assert.deepEqual(through(text, new Map([["a", 1n], ["b", null]]), null, new Map()), [new Map([["a", 1n], ["b", null]]), null, new Map()]);
  assert.deepEqual(through(number, new Map([[0, 1n], [NaN, 2n]])), [new Map([[0, 1n], [NaN, 2n]])]);
  assert.throws(() => values(entries(text, ["a", "a"])), /a map has a key twice.*a, a/);
  assert.throws(() => values(entries(number, [0, -0])), /a map has a key twice/);
  assert.throws(() => values(entries(number, [1.5, -0])), /a map has the key -0.0/);
});

/** A column of one map with these keys, which a Map could not hold. */
function entries(type, keys) {
  const field = type.children[0], [key, value] = field.type.children;
  const columns = new Schema([new Field("key", key.type, true), new Field("value", value.type, true)]);
  const {children} = batchOf(columns, keys.map((key) => ({key, value: 1n}))).data;
  const child = arrow.makeData({type: field.type, length: keys.length, nullCount: 0, children});
  return arrow.makeVector(arrow.makeData({type, length: 1, nullCount: 0, valueOffsets: Int32Array.of(0, keys.length), child}));
}

test("an error shows no more of a value than fits a line or two", () => {
  assert.throws(() => through(new arrow.Int64(), "x".repeat(2_000_000)), (e) => e.message.length < 400 && /characters cut/.test(e.message));
});
