// Legal msgpack that no known peer writes: heads and integers wider than they need to be.

import { encode } from '@msgpack/msgpack';

/** First byte and width in bytes of a head or integer. */
type Form = readonly [first: number, bytes: number];

const INTEGERS: readonly Form[] = [
  [0xcc, 1],
  [0xcd, 2],
  [0xce, 4],
];
const TEXTS: readonly Form[] = [
  [0xd9, 1],
  [0xda, 2],
  [0xdb, 4],
];
const BINS: readonly Form[] = [
  [0xc4, 1],
  [0xc5, 2],
  [0xc6, 4],
];
const ARRAYS: readonly Form[] = [
  [0xdc, 2],
  [0xdd, 4],
];
const MAPS: readonly Form[] = [
  [0xde, 2],
  [0xdf, 4],
];

/** Encodes a value; `choose` picks one of the legal forms at each head. Maps are given as `Map`. */
export function encodeWide(value: unknown, choose: () => number): Buffer {
  const fix = (first: number, limit: number, length: number): Buffer | undefined =>
    length < limit ? Buffer.of(first | length) : undefined;
  if (typeof value === 'number' && Number.isInteger(value) && value >= 0 && value <= 0xffff_ffff) {
    return choose() % 5 === 0 ? signed64(value) : head(fix(0, 0x80, value), INTEGERS, value, choose);
  }
  if (typeof value === 'string') {
    const bytes = Buffer.from(value);
    return Buffer.concat([head(fix(0xa0, 32, bytes.length), TEXTS, bytes.length, choose), bytes]);
  }
  if (value instanceof Uint8Array) {
    return Buffer.concat([head(undefined, BINS, value.length, choose), value]);
  }
  if (Array.isArray(value)) {
    const entries = value.map((entry) => encodeWide(entry, choose));
    return Buffer.concat([head(fix(0x90, 16, value.length), ARRAYS, value.length, choose), ...entries]);
  }
  if (value instanceof Map) {
    const entries = [...value].flatMap(([key, entry]) => [
      encodeWide(key, choose),
      encodeWide(entry, choose),
    ]);
    return Buffer.concat([head(fix(0x80, 16, value.size), MAPS, value.size, choose), ...entries]);
  }
  return Buffer.from(encode(value));
}

function head(
  fixed: Buffer | undefined,
  forms: readonly Form[],
  length: number,
  choose: () => number,
): Buffer {
  const wide = forms
    .filter(([, bytes]) => length < 2 ** (8 * bytes))
    .map(([first, bytes]) => {
      const form = Buffer.alloc(1 + bytes, first);
      form.writeUIntBE(length, 1, bytes);
      return form;
    });
  const legal = fixed === undefined ? wide : [fixed, ...wide];
  return legal[choose() % legal.length];
}

function signed64(value: number): Buffer {
  const form = Buffer.alloc(9, 0xd3);
  form.writeBigInt64BE(BigInt(value), 1);
  return form;
}
