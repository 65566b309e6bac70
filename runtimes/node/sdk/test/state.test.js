import assert from "node:assert/strict";
import {readFileSync} from "node:fs";
import {test} from "node:test";

import {pack, unpack} from "../src/state.js";
import {Decimal} from "../src/values.js";

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
