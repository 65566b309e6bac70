// Values for which JavaScript has no type, or no exact one. Each is compared and printed by its text.

const NS_OF = {ms: 1_000_000n, us: 1_000n};

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
    if (whole === undefined || part.slice(scale).replace(/0+$/, "")) {
      throw new RangeError(`${this.text} is no number with ${scale} decimal places`);
    }
    const digits = BigInt(whole + part.slice(0, scale).padEnd(scale, "0"));
    return sign === "-" ? -digits : digits;
  }

  static ofUnscaled(digits, scale) {
    const text = (digits < 0n ? -digits : digits).toString().padStart(scale + 1, "0");
    const at = text.length - scale;
    return new Decimal((digits < 0n ? "-" : "") + text.slice(0, at) + (scale > 0 ? `.${text.slice(at)}` : ""));
  }
}

export function floorDiv(a, b) {
  const q = a / b;
  return a % b < 0n ? q - 1n : q;
}
