// Text as UTF-8, exactly, and text that is only shown to people, which is cut and mended.
const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", {fatal: true, ignoreBOM: true}); // ignoring it means keeping it: a U+FEFF at the beginning
// Half of a surrogate pair without the other half.
const HALF = /\p{Surrogate}/u, HALVES = /\p{Surrogate}/gu;
const isWellFormed = "isWellFormed" in String.prototype ? (text) => text.isWellFormed() : (text) => !HALF.test(text); // Node 20
// Room for the note in a text that is cut.
const NOTE_CHARS = 60;

/** The text as UTF-8. TypeError if it has half of a surrogate pair, which the encoder would replace. */
export function encoded(text) {
  if (!isWellFormed(text)) throw new TypeError("it has half of a surrogate pair: cut it between characters, as by [...text].slice(0, 10)");
  return encoder.encode(text);
}

export function decoded(bytes) {
  return decoder.decode(bytes);
}

/** Text for people: its beginning and end, at most `most` characters with the note between them; halves of surrogate pairs are replaced. */
export function cut(text, most) {
  const all = String(text);
  if (all.length <= most) return all.replace(HALVES, "\ufffd");
  const half = (most - NOTE_CHARS) >> 1;
  const begin = all.slice(0, half).replace(/[\ud800-\udbff]$/, ""), end = all.slice(-half).replace(/^[\udc00-\udfff]/, "");
  const count = (all.length - begin.length - end.length).toLocaleString("en-US");
  return `${begin} … ${count} characters cut … ${end}`.replace(HALVES, "\ufffd");
}

/** A value for people: its text and type, or an object's class. */
export function named(v) {
  const text = v !== null && typeof v === "object" ? v.constructor?.name ?? "an object" : cut(String(v), 200);
  return `${text} (${typeof v})`;
}
