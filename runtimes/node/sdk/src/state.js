// States and keys as MessagePack, in the profile of docs/operator-protocol.md. No library is used, since the existing ones read 1 and 1.0
// as the same number.
import {decoded, encoded, named} from "./text.js";
import {Decimal, Instant, LocalDate, LocalDateTime, floorDiv, storable} from "./values.js";

const TIME = -1, LOCAL_TIME = 1, DATE = 2, DECIMAL = 3;
// The number of 1970-01-01 among the profile's dates, whose day 1 is 0001-01-01.
const EPOCH_DAY = 719_163;
const LAST_DAY = 3_652_059; // 9999-12-31
// Text that Python reads as a decimal: digits as Decimal takes them, and the special values that only Python writes.
const DECIMAL_TEXT = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d{1,17})?$|^[+-]?(infinity|s?nan\d*)$/i;
const SECOND_NS = 1_000_000_000n;

class Sink {
  bytes = new Uint8Array(256);
  view = new DataView(this.bytes.buffer);
  at = 0;

  room(size) {
    if (this.at + size > this.bytes.length) {
      const more = new Uint8Array(Math.max(this.bytes.length * 2, this.at + size));
      more.set(this.bytes);
      this.bytes = more;
      this.view = new DataView(more.buffer);
    }
    const at = this.at;
    this.at += size;
    return at;
  }

  // `room` may replace bytes and view, so it is called first.
  u8(v) { const at = this.room(1); this.view.setUint8(at, v); }
  u16(v) { const at = this.room(2); this.view.setUint16(at, v); }
  u32(v) { const at = this.room(4); this.view.setUint32(at, v); }
  u64(v) { const at = this.room(8); this.view.setBigUint64(at, BigInt.asUintN(64, v)); }
  f64(v) { const at = this.room(8); this.view.setFloat64(at, v); }
  raw(data) { const at = this.room(data.length); this.bytes.set(data, at); }

  // Writes a length in its shortest form: with `fix` in one byte up to `fixMost`, else in 8 (c8 = 0: never), 16 or 32 bits.
  length(n, fix, fixMost, c8, c16) {
    if (n <= fixMost) this.u8(fix | n);
    else if (c8 && n < 0x100) { this.u8(c8); this.u8(n); }
    else if (n < 0x10000) { this.u8(c16); this.u16(n); }
    else { this.u8(c16 + 1); this.u32(n); }
  }

  extension(type, data) {
    const fixed = {1: 0xd4, 2: 0xd5, 4: 0xd6, 8: 0xd7, 16: 0xd8}[data.length];
    if (fixed) this.u8(fixed);
    else this.length(data.length, 0, -1, 0xc7, 0xc8);
    this.u8(type & 0xff);
    this.raw(data);
  }

  integer(v) {
    if (v >= 0n) {
      if (v < 0x80n) this.u8(Number(v));
      else if (v < 0x100n) { this.u8(0xcc); this.u8(Number(v)); }
      else if (v < 0x10000n) { this.u8(0xcd); this.u16(Number(v)); }
      else if (v < 0x100000000n) { this.u8(0xce); this.u32(Number(v)); }
      else if (v < 1n << 64n) { this.u8(0xcf); this.u64(v); }
      else throw new RangeError(`${v} has more than 64 bits`);
    } else if (v >= -32n) this.u8(Number(v) & 0xff);
    else if (v >= -0x80n) { this.u8(0xd0); this.u8(Number(v) & 0xff); }
    else if (v >= -0x8000n) { this.u8(0xd1); this.u16(Number(v) & 0xffff); }
    else if (v >= -0x80000000n) { this.u8(0xd2); this.u32(Number(v) >>> 0); }
    else if (v >= -(1n << 63n)) { this.u8(0xd3); this.u64(v); }
    else throw new RangeError(`${v} has more than 64 bits`);
  }

  value(v) {
    if (v === null || v === undefined) this.u8(0xc0);
    else if (typeof v === "boolean") this.u8(v ? 0xc3 : 0xc2);
    else if (typeof v === "bigint") this.integer(v);
    else if (typeof v === "number") { this.u8(0xcb); this.f64(v); }
    else if (typeof v === "string") { const data = encoded(v); this.length(data.length, 0xa0, 31, 0xd9, 0xda); this.raw(data); }
    else if (v instanceof Uint8Array) { this.length(v.length, 0, -1, 0xc4, 0xc5); this.raw(v); }
    else if (v instanceof Instant || v instanceof Date) this.extension(TIME, time(storable(v).ns));
    else if (v instanceof LocalDateTime) this.extension(LOCAL_TIME, bytes(8, (view) => view.setBigInt64(0, storable(v).micros)));
    else if (v instanceof LocalDate) this.extension(DATE, bytes(4, (view) => view.setInt32(0, day(v))));
    else if (v instanceof Decimal) this.extension(DECIMAL, encoded(decimal(v)));
    else if (Array.isArray(v)) { this.length(v.length, 0x90, 15, 0, 0xdc); for (const each of v) this.value(each); }
    else if (v instanceof Map || Object.getPrototypeOf(v) === Object.prototype) this.map(v instanceof Map ? [...v] : Object.entries(v));
    else throw new TypeError(`a state cannot hold a ${v?.constructor?.name ?? typeof v}: use text, BigInt, numbers, booleans, Uint8Array, `
      + "the SDK's times and Decimal, arrays, objects or Maps");
  }

  // Entries are in the order of their keys, so that an unchanged state has unchanged bytes.
  map(entries) {
    this.length(entries.length, 0x80, 15, 0, 0xde);
    for (const [name, v] of entries.sort(([a], [b]) => (a < b ? -1 : 1))) {
      this.value(nameOf(name));
      this.value(v);
    }
  }
}

function nameOf(key) {
  if (typeof key !== "string") throw new TypeError(`a state's maps have text as keys, not ${key}`);
  return key;
}

function day({days}) {
  const number = days + EPOCH_DAY;
  if (!Number.isInteger(number) || number < 1 || number > LAST_DAY) {
    throw new RangeError(`a LocalDate of ${days} days since 1970: expected a whole number within the years 1 to 9999`);
  }
  return number;
}

function decimal({text}) {
  if (!DECIMAL_TEXT.test(text)) throw new RangeError(`a Decimal of ${named(text)}: expected digits as text, "-12.50"`);
  return String(text);
}

function bytes(size, write) {
  const data = new Uint8Array(size);
  write(new DataView(data.buffer));
  return data;
}

function time(ns) {
  const seconds = floorDiv(ns, SECOND_NS), rest = ns - seconds * SECOND_NS;
  if (seconds < 0n || seconds >= 1n << 34n) {
    return bytes(12, (view) => { view.setUint32(0, Number(rest)); view.setBigInt64(4, seconds); });
  }
  if (rest === 0n && seconds < 1n << 32n) return bytes(4, (view) => view.setUint32(0, Number(seconds)));
  return bytes(8, (view) => view.setBigUint64(0, (rest << 34n) | seconds));
}

class Source {
  at = 0;

  constructor(data) {
    this.data = data;
    this.view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  }

  skip(size) {
    const at = this.at;
    this.at += size;
    return at;
  }

  u8() { return this.view.getUint8(this.skip(1)); }
  u16() { return this.view.getUint16(this.skip(2)); }
  u32() { return this.view.getUint32(this.skip(4)); }
  raw(size) { return this.data.slice(this.at, this.skip(size) + size); }
  text(size) { return decoded(this.data.subarray(this.at, this.skip(size) + size)); }
  array(size) { return Array.from({length: size}, () => this.value()); }
  map(size) { return Object.fromEntries(Array.from({length: size}, () => [nameOf(this.value()), this.value()])); }

  value() {
    const c = this.u8();
    if (c < 0x80) return BigInt(c);
    if (c >= 0xe0) return BigInt(c - 0x100);
    if (c < 0x90) return this.map(c & 0x0f);
    if (c < 0xa0) return this.array(c & 0x0f);
    if (c < 0xc0) return this.text(c & 0x1f);
    switch (c) {
      case 0xc0: return null;
      case 0xc2: return false;
      case 0xc3: return true;
      case 0xc4: return this.raw(this.u8());
      case 0xc5: return this.raw(this.u16());
      case 0xc6: return this.raw(this.u32());
      case 0xc7: return this.extension(this.u8());
      case 0xc8: return this.extension(this.u16());
      case 0xc9: return this.extension(this.u32());
      case 0xca: return this.view.getFloat32(this.skip(4));
      case 0xcb: return this.view.getFloat64(this.skip(8));
      case 0xcc: return BigInt(this.u8());
      case 0xcd: return BigInt(this.u16());
      case 0xce: return BigInt(this.u32());
      case 0xcf: return this.view.getBigUint64(this.skip(8));
      case 0xd0: return BigInt(this.view.getInt8(this.skip(1)));
      case 0xd1: return BigInt(this.view.getInt16(this.skip(2)));
      case 0xd2: return BigInt(this.view.getInt32(this.skip(4)));
      case 0xd3: return this.view.getBigInt64(this.skip(8));
      case 0xd4: case 0xd5: case 0xd6: case 0xd7: case 0xd8: return this.extension(1 << (c - 0xd4));
      case 0xd9: return this.text(this.u8());
      case 0xda: return this.text(this.u16());
      case 0xdb: return this.text(this.u32());
      case 0xdc: return this.array(this.u16());
      case 0xdd: return this.array(this.u32());
      case 0xde: return this.map(this.u16());
      case 0xdf: return this.map(this.u32());
      default: throw new TypeError(`not MessagePack: a value that begins with 0x${c.toString(16)}`);
    }
  }

  extension(size) {
    const type = this.view.getInt8(this.skip(1)), at = this.skip(size), view = this.view;
    if (type === TIME && size === 4) return new Instant(BigInt(view.getUint32(at)) * SECOND_NS);
    if (type === TIME && size === 8) {
      const both = view.getBigUint64(at);
      return new Instant((both & ((1n << 34n) - 1n)) * SECOND_NS + (both >> 34n));
    }
    if (type === TIME && size === 12) return new Instant(view.getBigInt64(at + 4) * SECOND_NS + BigInt(view.getUint32(at)));
    if (type === LOCAL_TIME) return LocalDateTime.ofMicros(view.getBigInt64(at));
    if (type === DATE) return new LocalDate(view.getInt32(at) - EPOCH_DAY);
    if (type === DECIMAL) return new Decimal(decoded(this.data.subarray(at, at + size)));
    throw new TypeError(`a state of an unknown kind: extension ${type} of ${size} bytes`);
  }
}

const sink = new Sink();

export function pack(value) {
  sink.at = 0;
  sink.value(value);
  return sink.bytes.slice(0, sink.at);
}

export function unpack(data) {
  return new Source(data).value();
}
