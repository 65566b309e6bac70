// A lower bound of the bytes of values in a record batch: bits and validity bitmaps are left out.
import {DataType} from "apache-arrow";

const sum = (all, of) => all.reduce((bytes, each) => bytes + of(each), 0);

/** The fixed bytes of a value of this type. */
export function fixed(type) {
  if (DataType.isBool(type)) return 0;
  if (DataType.isDecimal(type)) return type.bitWidth / 8;
  if (DataType.isFixedSizeBinary(type)) return type.byteWidth;
  if (DataType.isFixedSizeList(type)) return type.listSize * fixed(type.children[0].type);
  if (DataType.isStruct(type)) return sum(type.children, (field) => fixed(field.type));
  if (isText(type) || isBytes(type) || isList(type) || DataType.isMap(type)) return type.OffsetArrayType.BYTES_PER_ELEMENT;
  return type.ArrayType.BYTES_PER_ELEMENT ?? 0;
}

/** A function that returns a value's bytes beyond the fixed ones; undefined if there are never any. A value of another type has none. */
export function varied(type) {
  if (isText(type)) return (v) => (typeof v === "string" ? v.length : 0); // its UTF-8 is no shorter
  if (isBytes(type)) return (v) => (v instanceof Uint8Array ? v.length : 0);
  if (isList(type)) {
    const each = element(type.children[0].type);
    return (v) => (Array.isArray(v) ? sum(v, each) : 0);
  }
  if (DataType.isMap(type)) {
    const [key, value] = type.children[0].type.children.map((field) => element(field.type));
    return (v) => (v instanceof Map ? sum([...v], (entry) => key(entry[0]) + value(entry[1])) : 0);
  }
  if (DataType.isFixedSizeList(type)) {
    const more = varied(type.children[0].type);
    return more && ((v) => (Array.isArray(v) ? sum(v, more) : 0));
  }
  if (DataType.isStruct(type)) {
    const fields = type.children.map((field) => [field.name, varied(field.type)]).filter(([, more]) => more);
    return fields.length ? (v) => sum(fields, ([name, more]) => more(v?.[name])) : undefined;
  }
  return undefined;
}

function element(type) {
  const bytes = fixed(type), more = varied(type);
  return more ? (v) => bytes + more(v) : () => bytes;
}

const isText = (type) => DataType.isUtf8(type) || DataType.isLargeUtf8(type);
const isBytes = (type) => DataType.isBinary(type) || DataType.isLargeBinary(type);
const isList = (type) => DataType.isList(type) || DataType.isLargeList(type);
