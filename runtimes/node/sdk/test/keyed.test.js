import assert from "node:assert/strict";
import {test} from "node:test";

import {Key} from "../src/keyed.js";
import {pack, unpack} from "../src/state.js";
import {Instant, LocalDateTime} from "../src/values.js";

const FIRST_US = -62_135_596_800_000_000n, LAST_US = 253_402_300_799_999_999n;

function key(state = null) {
  const timers = [];
  return [new Key({}, timers, 3, pack("k"), state, null), timers];
}

test("a timer and an expiration are an Instant, a Date, or a LocalDateTime, which counts as UTC", () => {
  for (const at of [Instant.ofMicros(5_000n), new Date(5), LocalDateTime.ofMicros(5_000n)]) {
    const [some, timers] = key();
    some.timer(at);
    some.expire(at);
    assert.deepEqual([timers, some.change()], [[{key: 3, at_us: 5_000n}], {key: 3, state: null, expires_us: 5_000n}]);
  }
});

test("what is no time is refused, and so is a time beyond the years 1 to 9999", () => {
  const [some, timers] = key();
  for (const call of [(at) => some.timer(at), (at) => some.expire(at)]) {
    for (const at of [null, undefined, 5, 5n, "2024-01-01", {}]) assert.throws(() => call(at), /^TypeError: expected an Instant, got /);
    assert.throws(() => call(new Date(NaN)), /RangeError: an invalid Date/);
    for (const us of [FIRST_US - 1n, LAST_US + 1n]) assert.throws(() => call(Instant.ofMicros(us)), /beyond the years 1 to 9999/);
  }
  assert.deepEqual([timers, some.change()], [[], undefined]);
  for (const us of [FIRST_US, LAST_US]) some.timer(Instant.ofMicros(us));
  assert.deepEqual(timers.map((t) => t.at_us), [FIRST_US, LAST_US]);
});

test("a state is a plain object, and what is refused leaves the former one", () => {
  const [some] = key(pack({n: 1n}));
  for (const state of [null, 5n, "n", [1n], new Map([["n", 1n]])]) {
    assert.throws(() => { some.state = state; }, /expected a state as an object/);
  }
  assert.throws(() => { some.state = {at: Instant.ofMicros(LAST_US + 1n)}; }, RangeError);
  assert.deepEqual([some.state, some.change()], [{n: 1n}, undefined]);
  some.state = {n: 2n};
  assert.deepEqual(unpack(some.change().state), {n: 2n});
});
