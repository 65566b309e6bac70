// Gathers answered events, up to a bound. Many are converted to columns on the way, since objects take many times the memory of Arrow.
import {DataType, RecordBatch, Struct, makeData} from "apache-arrow";

import {batchOf, requireColumns} from "./columns.js";
import {fixed, varied} from "./size.js";

// The most rows that are kept as objects.
const MOST_OBJECTS = 8192;

/** An answer is larger than Start allows. */
export class TooLargeError extends Error {
  name = "TooLargeError";

  constructor(events, states, bytes, bound) {
    const what = states ? `${events} events and ${states} states` : `${events} events`;
    const advice = "return less per event, or send fewer events at a time";
    super(`the answer to one frame has ${what} of ${bytes} bytes; the bound is ${bound}: ${advice}`);
  }
}

/** The property of a SchemaError that holds the source of the row that does not fit. */
export const SOURCE = Symbol("source");

/** Gathers rows: `add` each with its source, then call `batch`. SchemaError if one does not fit, TooLargeError if there are too many. */
export class Rows {
  constructor(schema, bound) {
    this.schema = schema;
    this.bound = bound;
    this.rowBytes = schema.fields.reduce((bytes, field) => bytes + fixed(field.type), 0);
    this.varied = schema.fields.map((field) => [field.name, varied(field.type)]).filter(([, more]) => more);
    this.clear();
  }

  clear() {
    Object.assign(this, {rows: [], sources: [], parts: [], count: 0, bytes: 0});
  }

  add(row, source) {
    requireColumns(this.schema, row);
    this.rows.push(this.copy(row));
    this.sources.push(source);
    this.count++;
    this.bytes += this.rowBytes;
    for (const [name, more] of this.varied) this.bytes += more(row[name]);
    if (this.bytes > this.bound) throw new TooLargeError(this.count, 0, this.bytes, this.bound);
    if (this.rows.length === MOST_OBJECTS) this.settle();
  }

  /** The row as it is now: its owner may change it and answer it again. */
  copy(row) {
    const copy = {};
    for (const {name} of this.schema.fields) copy[name] = row[name];
    return copy;
  }

  /** Converts the rows kept as objects to columns. */
  settle() {
    try {
      this.parts.push(batchOf(this.schema, this.rows));
    } catch (e) {
      throw Object.assign(e, {[SOURCE]: this.sources[e.row]});
    }
    this.rows = [];
    this.sources = [];
  }

  /** All rows as a batch. */
  batch() {
    if (this.rows.length || !this.parts.length) this.settle();
    return this.parts.length === 1 ? this.parts[0] : joined(this.schema, this.parts.splice(0));
  }
}

/** Joins batches made by batchOf, and empties the array. Each part is released once it is copied, column by column. */
function joined(schema, batches) {
  const length = batches.reduce((rows, batch) => rows + batch.numRows, 0);
  const columns = schema.fields.map((_, n) => batches.map((batch) => batch.data.children[n]));
  batches.length = 0;
  const children = schema.fields.map((field, n) => join(field.type, columns[n].splice(0)));
  return new RecordBatch(schema, makeData({type: new Struct(schema.fields), length, nullCount: 0, children}));
}

function join(type, parts) {
  const length = parts.reduce((rows, part) => rows + part.length, 0), nullCount = parts.reduce((nulls, part) => nulls + part.nullCount, 0);
  const valid = (part) => (part.nullCount ? part.nullBitmap : undefined);
  const common = {type, length, nullCount, nullBitmap: nullCount ? bits(parts, length, valid) : undefined};
  const child = (n) => join(type.children[n].type, parts.map((part) => part.children[n]));
  if (DataType.isNull(type)) return makeData({type, length});
  if (DataType.isBool(type)) return makeData({...common, data: bits(parts, length, (part) => part.values)});
  if (DataType.isStruct(type)) return makeData({...common, children: type.children.map((_, n) => child(n))});
  if (DataType.isFixedSizeList(type)) return makeData({...common, child: child(0)});
  if (!parts[0].valueOffsets?.length) return makeData({...common, data: values(parts)});
  const valueOffsets = offsets(parts, length);
  return DataType.isList(type) || DataType.isLargeList(type) || DataType.isMap(type)
    ? makeData({...common, valueOffsets, child: child(0)})
    : makeData({...common, valueOffsets, data: values(parts)});
}

/** The bits of all parts; the bits of a part without any are set. */
function bits(parts, length, of) {
  const whole = new Uint8Array(Math.ceil(length / 8));
  let at = 0;
  for (const part of parts) {
    const some = of(part);
    for (let i = 0; i < part.length; i++, at++) if (!some || (some[i >> 3] >> (i & 7)) & 1) whole[at >> 3] |= 1 << (at & 7);
  }
  return whole;
}

function values(parts) {
  const whole = new parts[0].values.constructor(parts.reduce((length, part) => length + part.values.length, 0));
  for (let at = 0; parts.length; ) {
    const {values: some} = parts.shift();
    whole.set(some, at);
    at += some.length;
  }
  return whole;
}

function offsets(parts, length) {
  const whole = new parts[0].valueOffsets.constructor(length + 1);
  let at = 0;
  for (const {valueOffsets: some, length: rows} of parts) {
    const before = whole[at];
    for (let i = 1; i <= rows; i++) whole[at + i] = before + some[i];
    at += rows;
  }
  return whole;
}
