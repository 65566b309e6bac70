// The wire form (docs/operator-protocol.md): u32 header, u32 body, Protobuf header, padding to 8, Arrow record batch messages.
import {readFileSync} from "node:fs";
import {createConnection} from "node:net";

import {AsyncByteQueue, RecordBatchReader, RecordBatchStreamWriter, Schema} from "apache-arrow";
import protobuf from "protobufjs";

import {TooLargeError} from "./rows.js";

const proto = protobuf.parse(readFileSync(new URL("operator.proto", import.meta.url), "utf-8"), {keepCase: true}).root;
const Message = proto.lookupType("udo.operator.v1.Message");
const {values: TABLES, valuesById: TABLE_NAMES} = proto.lookupEnum("udo.operator.v1.Part.Table");
// Larger messages are sent in pieces, without copying the whole.
const PIECES_BYTES = 64 << 10;
const padding = (n) => -n & 7;

/** Receives and sends messages: each is an object with the field of its kind (`data`, `start`, ...), and its tables' bytes by name. */
export class Wire {
  bound = Infinity; // of an answer's tables, in bytes; given by Start

  constructor(path) {
    this.socket = createConnection(path);
    this.socket.on("error", (e) => e.code === "EPIPE" || console.error(e));
  }

  /** The received messages, until the engine is gone. */
  async *messages() {
    const chunks = new Chunks(this.socket);
    for (let prefix; (prefix = await chunks.read(8)); ) {
      const [size, bodySize] = new Uint32Array(prefix.buffer, 0, 2);
      const head = await chunks.read(size + padding(size)), body = await chunks.read(bodySize);
      if (!head || !body) return;
      const message = Message.toObject(Message.decode(head.subarray(0, size)), {longs: BigInt, oneofs: true});
      const tables = {};
      let at = 0;
      for (const {table, bytes, sharedOffset} of message.parts ?? []) {
        if (sharedOffset != null) throw new Error(`part ${table} lies in shared memory, which this SDK has not`);
        const length = Number(bytes);
        if (at + length > bodySize) throw new Error(`part ${table} lies outside of the body`);
        tables[TABLE_NAMES[table]] = body.subarray(at, at + length);
        at += length + padding(length);
      }
      yield {message, tables};
    }
  }

  /**
   * Sends a message with its tables, each as [name, record batch]. Resolves to whether the socket has taken it: false if the engine is
   * gone. TooLargeError, and nothing is sent, if they exceed the bound.
   */
  send(message, tables = []) {
    const pieces = [], parts = [];
    let size = 0;
    for (const [name, batch] of tables) {
      const data = encode(batch), bytes = data.reduce((all, piece) => all + piece.length, 0);
      parts.push({table: TABLES[name], bytes});
      pieces.push(...data, new Uint8Array(padding(bytes)));
      size += bytes + padding(bytes);
    }
    if (size > this.bound) {
      const rows = (kind) => tables.find(([name]) => name === kind)?.[1].numRows ?? 0;
      throw new TooLargeError(rows("ROWS"), rows("STATES"), size, this.bound);
    }
    const head = Message.encode(Message.fromObject({...message, parts})).finish();
    const first = new Uint8Array(8 + head.length + padding(head.length));
    new DataView(first.buffer).setUint32(0, head.length, true);
    new DataView(first.buffer).setUint32(4, size, true);
    first.set(head, 8);
    const all = size > PIECES_BYTES ? [first, ...pieces].filter((piece) => piece.length) : [Buffer.concat([first, ...pieces])];
    this.socket.cork();
    for (const piece of all.slice(0, -1)) this.socket.write(piece); // all at once: another message may be logged meanwhile
    const sent = new Promise((resolve) => this.socket.write(all.at(-1), (e) => resolve(!e)));
    this.socket.uncork();
    return sent;
  }
}

/** Reads exactly the requested number of bytes, each time into new memory, so that Arrow finds them aligned. */
class Chunks {
  constructor(socket) {
    this.next = socket[Symbol.asyncIterator]();
    this.chunk = new Uint8Array(0);
  }

  /** Reads `size` bytes; null if the other end has closed the socket. */
  async read(size) {
    const data = new Uint8Array(size);
    for (let at = 0; at < size; ) {
      if (this.chunk.length === 0) {
        const {value, done} = await this.next.next();
        if (done) return null;
        this.chunk = value;
      }
      const taken = this.chunk.subarray(0, size - at);
      data.set(taken, at);
      at += taken.length;
      this.chunk = this.chunk.subarray(taken.length);
    }
    return data;
  }
}

/** Reads record batch messages by the schema in an Arrow schema message. */
export class Decoder {
  constructor(message) {
    this.message = message;
    this.schema = RecordBatchReader.from(message).open().schema;
  }

  batch(data) {
    return RecordBatchReader.from([this.message, data]).next().value;
  }
}

/** A decoder for a table whose schema the protocol fixes. */
export function decoderOf(fields) {
  return new Decoder(Buffer.concat(new Pieces(new Schema(fields)).pieces));
}

/** Encodes a batch as a message in pieces, which are the batch's own memory. */
function encode(batch) {
  const stream = new Pieces(batch.schema);
  stream.pieces = [];
  stream.writer.write(batch);
  return stream.pieces;
}

/** The pieces that Arrow writes of a stream, which begins with the schema's message. */
class Pieces extends AsyncByteQueue {
  pieces = [];
  writer = new RecordBatchStreamWriter();

  constructor(schema) {
    super();
    this.writer.reset(this, schema);
  }

  write(piece) {
    this.pieces.push(piece);
  }
}
