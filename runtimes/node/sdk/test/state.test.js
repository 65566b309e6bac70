import assert from "node:assert/strict";
import {readFileSync} from "node:fs";
import {test} from "node:test";

import {pack, unpack} from "../src/state.js";
import {Decimal, Instant, LocalDate, LocalDateTime} from "../src/values.js";

const golden = JSON.parse(readFileSync(process.env.GOLDEN ?? new URL("../../../conformance/state.json", import.meta.url)));

test("each golden value, read and written again, has the same bytes", () => {
  assert.ok(golden.length > 0);
  for (const {name, packed} of golden) {
    const state = unpack(Buffer.from(packed, "hex"));
    assert.equal(Buffer.from(pack(state)).toString("hex"), packed, name);
  }
});

test("1 is not 1.0, and long texts, arrays and maps are read as written", () => {
  for (const v of [1n, 1, "x".repeat(70_000), Array(20).fill(-33n), Object.fromEntries([...Array(20).keys()].map((n) => [`k${n}`, null]))]) {
    assert.deepEqual(unpack(pack(v)), v);
  }
});

test("decimals have the digits of their scale", () => {
  assert.equal(new Decimal("-12.5").unscaled(2), -1250n);
  assert.equal(String(Decimal.ofUnscaled(-1n, 2)), "-0.01");
  assert.throws(() => new Decimal("0.001").unscaled(2), RangeError);
});

test("decimals of a negative scale have zeros in place of the digits that it leaves out", () => {
  assert.deepEqual([123n, -5n, 0n].map((n) => String(Decimal.ofUnscaled(n, -2))), ["12300", "-500", "0"]);
  assert.deepEqual(["12300", "-500.00", "0"].map((text) => new Decimal(text).unscaled(-2)), [123n, -5n, 0n]);
  for (const text of ["12345", "12300.5", "1", "", "-", ".", "1e3"]) assert.throws(() => new Decimal(text).unscaled(-2), RangeError);
});

test("text keeps a U+FEFF at its beginning, in values and in the names of entries", () => {
  assert.deepEqual(unpack(pack({v: "\ufeffa", "\ufeffb": 1n})), {v: "\ufeffa", "\ufeffb": 1n});
});

test("text with half of a surrogate pair is refused, in values and in the names of entries", () => {
  for (const state of [{v: "a\ud83d"}, {v: ["\ude00"]}, {"\ud83d": 1n}]) assert.throws(() => pack(state), /half of a surrogate pair/);
  assert.deepEqual(unpack(pack({"😀": "😀"})), {"😀": "😀"});
});

test("an array with holes has nothing in them", () => {
  assert.deepEqual(unpack(pack({v: [1n, , 2n], w: new Array(3)})), {v: [1n, null, 2n], w: [null, null, null]});
});

test("times and dates are within the years 1 to 9999", () => {
  const first = -62_135_596_800_000_000n, last = 253_402_300_799_999_999n;
  for (const kind of [Instant, LocalDateTime]) {
    for (const us of [first, last]) assert.equal(unpack(pack({v: kind.ofMicros(us)})).v.micros, us);
    for (const us of [first - 1n, last + 1n]) assert.throws(() => pack({v: kind.ofMicros(us)}), /beyond the years 1 to 9999/);
  }
  for (const days of [-719_162, 2_932_896]) assert.equal(unpack(pack({v: new LocalDate(days)})).v.days, days);
  for (const days of [-719_163, 2_932_897, 1.5, NaN]) assert.throws(() => pack({v: new LocalDate(days)}), /within the years 1 to 9999/);
  assert.throws(() => pack({v: new Date(8.64e15)}), /beyond the years/);
  assert.throws(() => pack({v: new Date(NaN)}), /an invalid Date/);
});

test("a decimal in a state is a number that Python reads", () => {
  for (const text of ["-12.50", "1E+2", "NaN", "-Infinity", ".5"]) assert.equal(unpack(pack({v: new Decimal(text)})).v.text, text);
  for (const text of ["", "-", "abc", "1,5", "1 "]) assert.throws(() => pack({v: new Decimal(text)}), /expected digits/);
});
