// Converts columns to arrays of values, and back, exactly: Arrow's own getters and builders use milliseconds and doubles.
import {DataType, Precision, RecordBatch, Struct, TimeUnit, makeData, makeVector, util} from "apache-arrow";

import {cut, decoded, encoded, named} from "./text.js";
import {Decimal, Duration, Instant, LocalDate, LocalDateTime, LocalTime, floorDiv} from "./values.js";

/** An answer does not fit the output schema. */
export class SchemaError extends Error {
  name = "SchemaError";
}

const NS = {[TimeUnit.SECOND]: 1_000_000_000n, [TimeUnit.MILLISECOND]: 1_000_000n, [TimeUnit.MICROSECOND]: 1_000n, [TimeUnit.NANOSECOND]: 1n};
const DAY_MS = 86_400_000n, DAY_NS = 86_400_000_000_000n;
// A floating point column holds every integer up to this one.
const EXACT = {[Precision.HALF]: 2n ** 11n, [Precision.SINGLE]: 2n ** 24n, [Precision.DOUBLE]: 2n ** 53n};
// JavaScript objects that are not structs.
const NO_STRUCTS = [Array, Map, Set, Date, Decimal, Duration, Instant, LocalDate, LocalDateTime, LocalTime];

/** A column's values: null, boolean, BigInt, number, string, Uint8Array, the types of values.js, array, object, or Map. */
export function values(vector) {
  return vector.data.flatMap((data) => ofData(data));
}

function ofData(data) {
  const type = data.type, raw = data.values, made = new Array(data.length);
  const each = (value) => {
    for (let i = 0; i < made.length; i++) made[i] = data.getValid(i) ? value(i) : null;
    return made;
  };
  if (DataType.isNull(type)) return made.fill(null);
  if (DataType.isInt(type)) return each((i) => BigInt(raw[i]));
  if (DataType.isTimestamp(type)) {
    const kind = type.timezone ? Instant : LocalDateTime, ns = NS[type.unit];
    return each((i) => new kind(raw[i] * ns));
  }
  if (DataType.isDate(type)) {
    return raw instanceof Int32Array ? each((i) => new LocalDate(raw[i])) : each((i) => new LocalDate(Number(floorDiv(raw[i], DAY_MS))));
  }
  if (DataType.isTime(type)) return each((i) => new LocalTime(BigInt(raw[i]) * NS[type.unit]));
  if (DataType.isDuration(type)) return each((i) => new Duration(raw[i] * NS[type.unit]));
  if (DataType.isDecimal(type)) {
    const words = type.bitWidth / 32;
    return each((i) => Decimal.ofUnscaled(whole(raw, i * words, words), type.scale));
  }
  if (DataType.isList(type) || DataType.isLargeList(type)) {
    const inner = ofData(data.children[0]), at = data.valueOffsets;
    return each((i) => inner.slice(Number(at[i]), Number(at[i + 1])));
  }
  if (DataType.isFixedSizeList(type)) {
    const inner = ofData(data.children[0]);
    return each((i) => inner.slice(i * type.listSize, (i + 1) * type.listSize));
  }
  if (DataType.isStruct(type)) {
    const inner = data.children.map(ofData);
    return each((i) => Object.fromEntries(type.children.map((field, n) => [field.name, inner[n][i]])));
  }
  if (DataType.isMap(type)) {
    const [keys, items] = data.children[0].children.map(ofData), at = data.valueOffsets;
    return each((i) => mapOf(keys.slice(at[i], at[i + 1]), items.slice(at[i], at[i + 1])));
  }
  if (DataType.isUtf8(type) || DataType.isLargeUtf8(type)) {
    const at = data.valueOffsets; // Arrow's own getter drops a U+FEFF at the beginning
    return each((i) => decoded(raw.subarray(Number(at[i]), Number(at[i + 1]))));
  }
  if (DataType.isBool(type) || DataType.isFloat(type)) return plain(data);
  return plain(data).map((v) => v && new Uint8Array(v)); // bytes, as a copy
}

function plain(data) {
  const vector = makeVector(data);
  return Array.from({length: data.length}, (_, i) => vector.get(i));
}

/** Makes a Map. TypeError if it would not hold all entries as they are, since it takes equal keys, and 0.0 and -0.0, for the same key. */
function mapOf(keys, items) {
  const map = new Map(keys.map((key, n) => [key, items[n]]));
  const wrong = map.size < keys.length ? "a key twice" : keys.some((key) => Object.is(key, -0)) ? "the key -0.0" : "";
  if (wrong) throw new TypeError(`a map has ${wrong}, which JavaScript's Map cannot hold: ${cut(keys.map(String).join(", "), 200)}`);
  return map;
}

function whole(words, at, count) {
  let value = 0n;
  for (let n = count - 1; n >= 0; n--) value = (value << 32n) | BigInt(words[at + n]);
  return BigInt.asIntN(32 * count, value);
}

/** Makes a batch from rows: objects with a value for each column. SchemaError if a value does not fit; its `row` is the row's number. */
export function batchOf(schema, rows) {
  const of = (some) => schema.fields.map(({name, type}) => dataOf(name, type, some.map((row) => row[name])));
  try {
    return new RecordBatch(schema, makeData({type: new Struct(schema.fields), length: rows.length, nullCount: 0, children: of(rows)}));
  } catch (e) {
    rows.forEach((row, n) => {
      try {
        of([row]);
      } catch (first) {
        throw Object.assign(first, {row: n});
      }
    });
    throw e;
  }
}

/** Throws SchemaError unless a row has the columns of the schema, and no others. */
export function requireColumns(schema, row) {
  const names = Object.keys(row);
  if (names.length !== schema.fields.length || !schema.fields.every((f) => f.name in row)) {
    const want = schema.fields.map((f) => f.name).join(", ");
    throw new SchemaError(`expected an event with the columns ${want}; the operator answered ${names.join(", ") || "none"}`);
  }
}

function dataOf(name, type, column) {
  const length = column.length, nullBitmap = new Uint8Array(Math.ceil(length / 8));
  let nullCount = 0;
  for (let i = 0; i < length; i++) {
    if (column[i] === null || column[i] === undefined) nullCount++;
    else nullBitmap[i >> 3] |= 1 << (i & 7);
  }
  const common = {type, length, nullCount, nullBitmap: nullCount ? nullBitmap : undefined};
  const unfit = (v, why) => {
    const got = v instanceof Decimal ? `Decimal ${cut(v.text, 200)}` : named(v);
    throw new SchemaError(`column "${name}": expected ${type}, the operator answered ${got}${why ? `: ${why}` : ""}`);
  };
  const fill = (array, value) => {
    for (let i = 0; i < length; i++) {
      if (column[i] !== null && column[i] !== undefined) {
        try {
          value(array, i, column[i]);
        } catch (e) {
          if (e instanceof SchemaError) throw e;
          unfit(column[i], e.message);
        }
      }
    }
    return array;
  };
  const require = (v, fits, why) => fits || unfit(v, why);
  const fixed = (array, value) => makeData({...common, data: fill(array, (a, i, v) => { a[i] = value(v); })});
  const exactly = (array, value) => makeData({...common, data: fill(array, (a, i, v) => {
    const units = value(v);
    a[i] = units;
    require(v, a[i] === units, `${units} is no whole number of ${8 * a.BYTES_PER_ELEMENT} bits`);
  })});
  const of = (kind, value) => (v) => (require(v, v instanceof kind), value(v));

  if (DataType.isNull(type)) return makeData({type, length});
  if (DataType.isInt(type)) return fixed(new type.ArrayType(length), (v) => integer(v, type, unfit));
  if (DataType.isFloat(type)) {
    const most = EXACT[type.precision];
    const number = (v) => {
      require(v, typeof v === "number" || typeof v === "bigint");
      require(v, typeof v === "number" || (-most <= v && v <= most), "it would be rounded");
      return Number(v);
    };
    return fixed(new type.ArrayType(length), type.precision === Precision.HALF ? (v) => util.float64ToUint16(number(v)) : number);
  }
  if (DataType.isBool(type)) {
    const bits = fill(new Uint8Array(Math.ceil(length / 8)), (a, i, v) => { require(v, typeof v === "boolean"); if (v) a[i >> 3] |= 1 << (i & 7); });
    return makeData({...common, data: bits});
  }
  if (DataType.isTimestamp(type)) {
    const ns = NS[type.unit];
    return exactly(new BigInt64Array(length), (v) => {
      const at = v instanceof Date ? Instant.from(v) : v;
      require(v, at instanceof Instant || at instanceof LocalDateTime);
      return floorDiv(at.ns, ns);
    });
  }
  if (DataType.isDate(type)) {
    const days = of(LocalDate, (v) => v.days);
    return type.unit === 0 ? exactly(new Int32Array(length), days) : exactly(new BigInt64Array(length), (v) => BigInt(days(v)) * DAY_MS);
  }
  if (DataType.isTime(type)) {
    const ticks = of(LocalTime, (v) => (require(v, v.ns >= 0n && v.ns < DAY_NS, "not within a day"), floorDiv(v.ns, NS[type.unit])));
    return type.bitWidth === 32 ? fixed(new Int32Array(length), (v) => Number(ticks(v))) : fixed(new BigInt64Array(length), ticks);
  }
  if (DataType.isDuration(type)) return exactly(new BigInt64Array(length), of(Duration, (v) => floorDiv(v.ns, NS[type.unit])));
  if (DataType.isDecimal(type)) {
    const words = type.bitWidth / 32;
    const data = fill(new Uint32Array(length * words), (a, i, v) => {
      let rest = of(Decimal, (d) => d.unscaled(type.scale))(v);
      require(v, (rest < 0n ? -rest : rest) < 10n ** BigInt(type.precision), `more than ${type.precision} digits`);
      for (let n = 0; n < words; n++, rest >>= 32n) a[i * words + n] = Number(BigInt.asUintN(32, rest));
    });
    return makeData({...common, data});
  }
  if (DataType.isStruct(type)) {
    fill([], (_, i, v) => require(v, isStruct(v), "expected an object with its fields"));
    const children = type.children.map((f) => dataOf(`${name}.${f.name}`, f.type, column.map((v) => v?.[f.name] ?? null)));
    return makeData({...common, children});
  }
  if (DataType.isFixedSizeBinary(type)) {
    const data = fill(new Uint8Array(length * type.byteWidth), (a, i, v) => {
      require(v, v instanceof Uint8Array && v.length === type.byteWidth);
      a.set(v, i * type.byteWidth);
    });
    return makeData({...common, data});
  }
  if (DataType.isFixedSizeList(type)) {
    const inner = fill(new Array(length * type.listSize).fill(null), (a, i, v) => {
      require(v, Array.isArray(v) && v.length === type.listSize, `${type.listSize} elements`);
      v.forEach((each, n) => { a[i * type.listSize + n] = each; });
    });
    return makeData({...common, child: dataOf(name, type.children[0].type, inner)});
  }
  return variable(name, common, column, fill, require);
}

function isStruct(v) {
  return typeof v === "object" && !ArrayBuffer.isView(v) && !NO_STRUCTS.some((kind) => v instanceof kind);
}

// Makes columns of text, bytes, lists and maps: the values one after the other, and the offset of each.
function variable(name, common, column, fill, require) {
  const {type, length} = common, large = type.OffsetArrayType === BigInt64Array;
  const text = DataType.isUtf8(type) || DataType.isLargeUtf8(type);
  const nested = DataType.isList(type) || DataType.isMap(type) || DataType.isLargeList(type);
  const parts = fill(new Array(length), (a, i, v) => {
    if (text) require(v, typeof v === "string");
    else if (DataType.isMap(type)) require(v, v instanceof Map);
    else require(v, nested ? Array.isArray(v) : v instanceof Uint8Array);
    a[i] = text ? encoded(v) : DataType.isMap(type) ? [...v].map(([key, value]) => ({key, value})) : v;
  });
  const valueOffsets = large ? new BigInt64Array(length + 1) : new Int32Array(length + 1);
  let at = 0;
  for (let i = 0; i < length; i++) {
    at += parts[i]?.length ?? 0;
    valueOffsets[i + 1] = large ? BigInt(at) : at;
  }
  if (nested) {
    const field = type.children[0], inner = [];
    for (const part of parts) for (const each of part ?? []) inner.push(each);
    if (!DataType.isMap(type)) return makeData({...common, valueOffsets, child: dataOf(name, field.type, inner)});
    const [key, value] = field.type.children;
    const children = [dataOf(name, key.type, inner.map((e) => e.key)), dataOf(name, value.type, inner.map((e) => e.value))];
    return makeData({...common, valueOffsets, child: makeData({type: field.type, length: inner.length, nullCount: 0, children})});
  }
  const data = new Uint8Array(at);
  parts.forEach((part, i) => part && data.set(part, Number(valueOffsets[i])));
  return makeData({...common, valueOffsets, data});
}

function integer(v, type, unfit) {
  if (typeof v !== "bigint" && !(typeof v === "number" && Number.isInteger(v))) unfit(v, "not an integer");
  const whole = BigInt(v), held = type.isSigned ? BigInt.asIntN(type.bitWidth, whole) : BigInt.asUintN(type.bitWidth, whole);
  if (held !== whole) unfit(v, `beyond its ${type.bitWidth} bits`);
  return type.bitWidth === 64 ? held : Number(held);
}
