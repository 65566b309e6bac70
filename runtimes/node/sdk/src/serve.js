// The conversation with the engine: one request at a time, each answered once.
import {SchemaError, values} from "./columns.js";
import {Touched} from "./keyed.js";
import {Rows, SOURCE} from "./rows.js";
import {cut} from "./text.js";
import {Instant} from "./values.js";
import {Decoder, Wire} from "./wire.js";

const PROTOCOL_VERSION = 1;
const SDK = "node 0.1.0";
// The largest possible body: its length is a number of 32 bits.
const MOST_BODY_BYTES = 2 ** 32 - 1;
// The engine cuts a Failure's `type: message` at 16,000 characters and its trace at 32,000, and refuses a message above 1 MiB.
const TYPE_CHARS = 200, MESSAGE_CHARS = 15_700, TRACE_CHARS = 32_000, LOG_CHARS = 64_000;
const LEVELS = {debug: 1, info: 2, warn: 3, error: 4};

/** Serves the operator until the engine stops it; then the process ends. */
export function run(operator) {
  const path = process.env.UDO_OPERATOR_SOCKET;
  if (!path) {
    console.error("this program is an operator: try it with `udo test DIR` (UDO_OPERATOR_SOCKET is not set)");
    process.exit(2);
  }
  new Server(operator, path).serve().then(
    () => process.exit(0),
    (e) => {
      console.error(e);
      process.exit(1);
    },
  );
}

/** The operator's context. Environment values and secrets are in process.env. */
class Context {
  directory = process.env.UDO_DIRECTORY; // of the files given at deployment
  /** The event time up to which all events have been seen, an Instant; undefined until it is known. */
  watermark = undefined;
  current = undefined; // the row being processed; undefined: not row by row
  assigned = undefined; // what was last assigned to a key's state

  constructor(start, input, output, wire) {
    this.rows = new Rows(output, wire.bound);
    this.operator = start.operator;
    this.version = start.operator_version;
    this.instance = start.instance;
    this.input = input;
    this.output = output;
    /** The operator's log, shown by `udo logs`. */
    this.log = {};
    for (const [name, level] of Object.entries(LEVELS)) {
      this.log[name] = (...words) => void wire.send({log: {level, message: cut(words.join(" "), LOG_CHARS)}});
    }
  }

  /** Called before a request. */
  begin() {
    this.rows.clear();
    this.current = this.assigned = undefined;
  }

  /** Answers an event: an object with the manifest's output columns, which is copied. */
  emit(row) {
    if (this.current === undefined) {
      throw new TypeError("emit(row) is for process, processKeyed and onTimer, until they end; a vectorised method returns its answer");
    }
    this.rows.add(row, this.current);
  }
}

class Server {
  constructor(operator, path) {
    this.operator = operator;
    this.capabilities = capabilities(operator);
    this.wire = new Wire(path);
    for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => {}); // the engine says when to stop
  }

  async serve() {
    const hello = {oldest: PROTOCOL_VERSION, newest: PROTOCOL_VERSION, capabilities: this.capabilities, sdk: SDK};
    await this.wire.send({hello});
    for await (const {message, tables} of this.wire.messages()) {
      const {id, kind} = message;
      const [reply, answer] = await this.guarded(kind, message[kind], tables);
      if (!(await this.send(id, reply, answer)) || kind === "stop") return;
    }
  }

  /** Sends a reply, or a Failure if it cannot be sent. */
  send(id, reply, answer) {
    try {
      return this.wire.send({id, ...reply}, answer);
    } catch (e) {
      this.ctx.current = undefined;
      return this.wire.send({id, ...this.failure(e)});
    }
  }

  /** Handles a request; an exception becomes a Failure. */
  async guarded(kind, request, tables) {
    try {
      return await this.handle(kind, request, tables);
    } catch (e) {
      return [this.failure(e), []];
    }
  }

  failure(e) {
    const {name = typeof e, message = String(e), stack = "", [SOURCE]: row = this.ctx?.current} = e ?? {};
    const type = cut(e instanceof Error ? e.constructor.name : name, TYPE_CHARS), code = e instanceof SchemaError ? "schema" : "";
    return {failure: {type, message: cut(message, MESSAGE_CHARS), trace: cut(stack, TRACE_CHARS), row, code}};
  }

  async handle(kind, request, tables) {
    this.ctx?.begin();
    switch (kind) {
      case "start": return [{ready: await this.start(request)}, []];
      case "data": case "rehearse": return [{answer: {}}, await this.data(request, tables)];
      case "timers": return [{answer: {}}, await this.timers(request, tables)];
      case "migrate": return [{answer: {}}, await this.migrate(request, tables)];
      case "ping": return [{ping: {}}, []];
      case "stop":
        await this.operator.close?.();
        return [{bye: {}}, []];
    }
    throw new Error(`this SDK (${SDK}) does not know the request ${kind}`);
  }

  async start(start) {
    if (!start.keyed && this.capabilities.includes("keyed")) {
      throw new SchemaError("the operator keeps state by key, and operator.toml names no key: add key = [\"COLUMN\", ...], the columns that make it up");
    }
    this.input = new Decoder(start.input);
    this.wire.bound = Math.min(Number(start.answer_bytes ?? 0) || MOST_BODY_BYTES, MOST_BODY_BYTES);
    this.ctx = new Context(start, this.input.schema, new Decoder(start.output).schema, this.wire);
    const begun = performance.now();
    if (!start.check) await this.operator.open?.(this.ctx);
    return {open_ms: performance.now() - begun};
  }

  async data(request, tables) {
    const {operator, ctx} = this, batch = this.input.batch(tables.EVENTS);
    ctx.watermark = watermark(request);
    if (operator.processBatch) return this.whole(await operator.processBatch(batch, ctx));
    if (operator.process) {
      await this.each(events(batch), (event) => operator.process(event, ctx));
      return this.emitted();
    }
    const touched = new Touched(tables, ctx), rows = touched.rows();
    if (operator.processKeys) return [...this.whole(await operator.processKeys(batch, rows, ctx)), ...touched.changes()];
    await this.each(events(batch), (event, row) => operator.processKeyed(event, rows[row]));
    return [...this.emitted(), ...touched.changes()];
  }

  async timers(request, tables) {
    this.ctx.watermark = watermark(request);
    const touched = new Touched(tables, this.ctx);
    await this.each(touched.due(), ([at, key]) => this.operator.onTimer(at, key));
    return [...this.emitted(), ...touched.changes()];
  }

  async migrate(request, tables) {
    const touched = new Touched(tables, this.ctx), from = request.from_version;
    await this.each(touched.keys, async (key) => {
      const made = await this.operator.migrate(key.state ?? {}, from);
      if (made === undefined || made === null) { // which would drop the state
        throw new TypeError(`migrate() from state version ${from}: expected the new state as an object, got ${made}: return it`);
      }
      key.state = made;
    });
    return touched.changes(true);
  }

  async each(all, step) {
    for (let row = 0; row < all.length; row++) {
      this.ctx.current = row;
      const done = step(all[row], row);
      // Others are not awaited: a turn of the event loop for each event would cost more than most events.
      if (done !== undefined) this.requireNoAnswer(await done);
    }
    this.ctx.current = undefined;
  }

  /** TypeError if a method has returned answers, which would be lost. Arrow functions return other objects too, like the state just set. */
  requireNoAnswer(left) {
    if (left === null || typeof left !== "object" || left === this.ctx.assigned) return;
    const {fields} = this.ctx.output, isRow = (v) => v !== null && typeof v === "object" && fields.some(({name}) => Object.hasOwn(v, name));
    const isAnswer = Array.isArray(left) ? left.some(isRow) : isRow(left), isGenerator = typeof left.next === "function";
    if (!isAnswer && !isGenerator) return;
    throw new TypeError(`it returned ${isAnswer ? "an answer" : "a generator"}: call emit(row) for each answer instead of return or yield`);
  }

  emitted() {
    return [["ROWS", this.ctx.rows.batch()]];
  }

  whole(answer) {
    if (answer === undefined || answer === null) return [];
    const [have, want] = [answer.schema, this.ctx.output].map((schema) => schema.fields.map((f) => `${f.name}: ${f.type}`).join(", "));
    if (have !== want) throw new SchemaError(`the operator's answer does not fit its output schema: expected ${want}, got ${have}`);
    return [["ROWS", answer]];
  }
}

function capabilities(operator) {
  const found = operator.processKeyed || operator.processKeys ? ["keyed"] : [];
  if (!found.length && !operator.processBatch && !operator.process) {
    throw new TypeError("the operator has none of processBatch, process, processKeyed and processKeys");
  }
  if (operator.onTimer) found.push("timers");
  if (operator.migrate) found.push("migrate");
  return [...found, "rehearse"];
}

function watermark({watermark_us: us}) {
  return us === undefined ? undefined : Instant.ofMicros(us);
}

/** The events of a batch as objects. */
function events(batch) {
  const columns = batch.schema.fields.map((field, n) => [field.name, values(batch.getChildAt(n))]);
  return Array.from({length: batch.numRows}, (_, row) => {
    const event = {};
    for (const [name, column] of columns) event[name] = column[row];
    return event;
  });
}
