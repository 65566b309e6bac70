import assert from "node:assert/strict";
import {test} from "node:test";

import {Field, Int64, Schema, Utf8} from "apache-arrow";

import {SchemaError, values} from "../src/columns.js";
import {Rows, SOURCE} from "../src/rows.js";

const WORDS = new Schema([new Field("n", new Int64(), true), new Field("word", new Utf8(), true)]);

test("a row that is changed after it was emitted stays as it was", () => {
  const rows = new Rows(WORDS, Infinity), row = {n: 1n, word: ""};
  for (const word of ["a", "b", "c"]) {
    row.word = word;
    rows.add(row, 0);
  }
  assert.deepEqual(values(rows.batch().getChild("word")), ["a", "b", "c"]);
});

test("a row that does not fit is named by its source", () => {
  const rows = new Rows(WORDS, Infinity);
  rows.add({n: 1n, word: "a"}, 4);
  rows.add({n: 1n, word: 5}, 7);
  assert.throws(() => rows.batch(), (e) => e instanceof SchemaError && e[SOURCE] === 7);
});
