// Keys, their states and timers, and the tables in which they are received and sent.
import {Binary, Field, Int32, Int64, Schema} from "apache-arrow";

import {batchOf, values} from "./columns.js";
import {pack, unpack} from "./state.js";
import {named} from "./text.js";
import {Instant, storable} from "./values.js";
import {decoderOf} from "./wire.js";

const fields = (columns) => Object.entries(columns).map(([name, type]) => new Field(name, type, true));
const STATE = {state: new Binary(), expires_us: new Int64()};
const STATES = new Schema(fields({key: new Int32(), ...STATE}));
const TIMES = new Schema(fields({key: new Int32(), at_us: new Int64()}));
const readers = {INDEX: decoderOf(fields({key: new Int32()})), KEYS: decoderOf(fields({key: new Binary(), ...STATE})), DUE: decoderOf(TIMES.fields)};

/** The key of an event: its state, its timers, and a way to answer. */
export class Key {
  #number; #key; #state; #expires; #changed = false; #timers;

  constructor(ctx, timers, number, key, state, expires) {
    this.ctx = ctx;
    this.#timers = timers;
    this.#number = number;
    this.#key = key;
    this.#state = state;
    this.#expires = expires;
  }

  /** The value of the key column, or an array of the values of several. */
  get value() {
    return unpack(this.#key);
  }

  /** The key's state, an object (a copy); undefined if it has none. */
  get state() {
    return this.#state === null ? undefined : unpack(this.#state);
  }

  /** Replaces the state; undefined drops it and its expiry. */
  set state(state) {
    if (state === undefined) this.#expires = null;
    else if (state === null || Object.getPrototypeOf(state) !== Object.prototype) {
      throw new TypeError(`expected a state as an object, got ${named(state)}`);
    }
    this.ctx.assigned = state;
    this.#state = state === undefined ? null : pack(state);
    this.#changed = true;
  }

  /** Answers an event. */
  emit(row) {
    this.ctx.emit(row);
  }

  /** Sets a timer: onTimer is called for this key at the end of the first epoch whose watermark has reached `at`, an Instant. */
  timer(at) {
    this.#timers.push({key: this.#number, at_us: storable(at).micros});
  }

  /** Drops the key's state at the end of the first epoch whose watermark has reached `at`; a later call replaces the time. */
  expire(at) {
    this.#expires = storable(at).micros;
    this.#changed = true;
  }

  /** The key's row of STATES; undefined if there is no change to report. */
  change(all) {
    return this.#changed || all ? {key: this.#number, state: this.#state, expires_us: this.#expires} : undefined;
  }
}

/** The tables of a keyed request, and the changes to answer. */
export class Touched {
  timers = [];

  constructor(tables, ctx) {
    this.tables = tables;
    const [keys, states, expires] = this.#columns("KEYS", 3);
    this.keys = keys.map((key, n) => new Key(ctx, this.timers, n, key, states[n], expires[n]));
  }

  #columns(name, count) {
    if (!this.tables[name]) return Array.from({length: count}, () => []);
    const batch = readers[name].batch(this.tables[name]);
    return Array.from({length: count}, (_, n) => values(batch.getChildAt(n)));
  }

  /** The key of each event. */
  rows() {
    return this.#columns("INDEX", 1)[0].map((n) => this.keys[Number(n)]);
  }

  /** The timers that are due, in the order in which they fire, each as [Instant, Key]. */
  due() {
    const [keys, times] = this.#columns("DUE", 2);
    return times.map((us, n) => [Instant.ofMicros(us), this.keys[Number(keys[n])]]);
  }

  /** The tables STATES and SET of an answer; `all`: including unchanged states. */
  changes(all = false) {
    const changed = this.keys.map((key) => key.change(all)).filter(Boolean);
    return [["STATES", batchOf(STATES, changed)], ["SET", batchOf(TIMES, this.timers)]];
  }
}
