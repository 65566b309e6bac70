// Values for which JavaScript has no type, or no exact one. < and > compare times and days by their numbers, two decimals by their text.

import {cut, named} from "./text.js";

const NS_OF = {ms: 1_000_000n, us: 1_000n};
// The range of Python's times, since any language may continue from a state: the years 1 to 9999.
const FIRST_US = -62_135_596_800_000_000n, LAST_US = 253_402_300_799_999_999n;

class Ns {
  /** @param {bigint} ns nanoseconds */
  constructor(ns) {
    this.ns = ns;
  }

  static ofMicros(us) {
    return new this(us * NS_OF.us);
  }

  get micros() {
    return floorDiv(this.ns, NS_OF.us);
  }

  valueOf() {
    return this.ns;
  }
}

class SinceEpoch extends Ns {
  /** @param {Date} date */
  static from(date) {
    if (Number.isNaN(date.getTime())) throw new RangeError("an invalid Date");
    return new this(BigInt(date.getTime()) * NS_OF.ms);
  }

  /** Converts it to a Date, which is exact to the millisecond only. */
  toDate() {
    return new Date(Number(floorDiv(this.ns, NS_OF.ms)));
  }

  toString() {
    return this.toDate().toISOString();
  }
}

/** A time with a zone: `ns` since 1970 UTC. */
export class Instant extends SinceEpoch {}

/** A time without a zone: `ns` since 1970. */
export class LocalDateTime extends SinceEpoch {}

/** The time of a timer, an expiration or a state. TypeError if it is not a time, RangeError if it is beyond the years 1 to 9999. */
export function storable(at) {
  const time = at instanceof Date ? Instant.from(at) : at;
  if (!(time instanceof SinceEpoch)) throw new TypeError(`expected an Instant, got ${named(at)}`);
  const us = time.micros;
  if (us < FIRST_US || us > LAST_US) throw new RangeError(`a time of ${us} µs since 1970, beyond the years 1 to 9999`);
  return time;
}

/** A time of the day: `ns` since midnight. */
export class LocalTime extends Ns {}

export class Duration extends Ns {}

/** A day: `days` since 1970-01-01, a number. */
export class LocalDate {
  constructor(days) {
    this.days = days;
  }

  valueOf() {
    return this.days;
  }

  toString() {
    return new Date(this.days * 86_400_000).toISOString().slice(0, 10);
  }
}

/** A decimal number as its digits: "-12.50". */
export class Decimal {
  constructor(text) {
    this.text = text;
  }

  toString() {
    return this.text;
  }

  /** The value as an integer in units of 10^-scale; RangeError if it has more digits. */
  unscaled(scale) {
    const [, sign, whole, part = ""] = /^([+-]?)(\d+)(?:\.(\d+))?$/.exec(this.text) ?? [];
    const digits = BigInt(whole === undefined ? 0 : whole + part), shift = scale - part.length, power = 10n ** BigInt(Math.abs(shift));
    if (whole === undefined || (shift < 0 && digits % power !== 0n)) {
      throw new RangeError(`${cut(this.text, 200)} is no number with ${scale} decimal places`);
    }
    const units = shift < 0 ? digits / power : digits * power;
    return sign === "-" ? -units : units;
  }

  static ofUnscaled(digits, scale) {
    if (scale < 0) return Decimal.ofUnscaled(digits * 10n ** BigInt(-scale), 0);
    const text = (digits < 0n ? -digits : digits).toString().padStart(scale + 1, "0");
    const at = text.length - scale;
    return new Decimal((digits < 0n ? "-" : "") + text.slice(0, at) + (scale > 0 ? `.${text.slice(at)}` : ""));
  }
}

export function floorDiv(a, b) {
  const q = a / b;
  return a % b < 0n ? q - 1n : q;
}
