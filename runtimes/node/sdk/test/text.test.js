import assert from "node:assert/strict";
import {test} from "node:test";

import {cut, decoded, encoded, named} from "../src/text.js";

test("text keeps a U+FEFF at its beginning", () => {
  for (const text of ["\ufeff", "\ufeffa", "a\ufeff", "\ufeff\ufeff"]) assert.equal(decoded(encoded(text)), text);
});

test("half of a surrogate pair is refused, a whole one is not", () => {
  assert.equal(decoded(encoded("😀")), "😀");
  for (const half of ["\ud83d", "\ude00", "a\ud83d", "\ude00\ud83d"]) assert.throws(() => encoded(half), /half of a surrogate pair/);
});

test("text for people is bounded with its note, and not cut within a character", () => {
  assert.equal(cut("x".repeat(100), 100), "x".repeat(100));
  const long = cut(`begin${"😀".repeat(100_000)}end`, 1_000);
  assert.ok(long.length <= 1_000 && long.length > 900);
  assert.match(long, /^begin😀+ … 199,\d\d\d characters cut … 😀+end$/u);
  assert.ok([...Array(9).keys()].every((n) => !cut("😀".repeat(1_000), 200 + n).includes("\ufffd")));
  assert.equal(cut("a\ud83db", 10), "a\ufffdb");
});

test("a value for people is its text, or an object's class, and bounded", () => {
  assert.deepEqual([null, 1n, "a", new Map(), Object.create(null)].map(named), [
    "null (object)", "1 (bigint)", "a (string)", "Map (object)", "an object (object)",
  ]);
  assert.ok(named("x".repeat(10_000)).length < 300);
});
