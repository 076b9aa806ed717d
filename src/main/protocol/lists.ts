// The three lists of the protocol, `keys`, `hits` and `block_indexes`, read without an object per element.
//
// Each has a `try...` that reads the usual form in one tight loop and gives up (undefined, cursor unmoved) at the first
// surprise, and a `read...` that reads every legal form, or says exactly what is wrong. scan.ts runs the first while it
// walks the map, and the second only for the field that counts in the end.

import { MAX_BLOCK_INDEX, type ProtocolLimits } from './limits.js';
import { HIT, INDEX_OVER_RANGE, MISS, type KeyList } from './messages.js';
import { kindOf, ScanFault, type Reader } from './reader.js';

/** Slots of a fetch; see `FetchMessage`. */
export interface IndexList {
  readonly indexes: Int32Array;
  readonly overRangeCount: number;
}

/** Keys that are all bin of the node's length under equal headers, or one bin: nothing is copied. */
export function tryKeys(reader: Reader): KeyList | undefined {
  const { payload, limits } = reader;
  const arrayStart = reader.position;
  const packed = tryPackedKeys(reader);
  if (packed !== undefined) return packed;
  const count = enterList(reader, 'keys');
  if (count === undefined) return undefined;
  const list = uniformKeys(payload, arrayStart, reader.position, count, limits.keyBytes);
  reader.position = list?.arrayEnd ?? arrayStart;
  return list;
}

/** One bin in which the keys lie back to back. Cursor unmoved when it is another value, or no whole number of keys. */
function tryPackedKeys(reader: Reader): KeyList | undefined {
  const { payload, limits } = reader;
  const { keyBytes } = limits;
  const arrayStart = reader.position;
  const length = reader.enterBin();
  if (length === undefined) return undefined;
  if (length % keyBytes !== 0) {
    reader.position = arrayStart;
    return undefined;
  }
  checkLength(length / keyBytes, 'keys', limits);
  const first = reader.position;
  reader.position += length;
  return {
    payload,
    arrayStart,
    arrayEnd: reader.position,
    bytes: payload,
    first,
    stride: keyBytes,
    count: length / keyBytes,
    keyBytes,
    foreign: undefined,
    foreignCount: 0,
  };
}

function uniformKeys(
  payload: Buffer,
  arrayStart: number,
  listStart: number,
  count: number,
  keyBytes: number,
): KeyList | undefined {
  const headerBytes = count === 0 ? 0 : binHeaderBytes(payload, listStart, keyBytes);
  if (headerBytes === undefined) return undefined;
  const stride = count === 0 ? keyBytes : headerBytes + keyBytes;
  const arrayEnd = listStart + count * stride;
  if (arrayEnd > payload.length) return undefined;
  if (!hasEqualHeaders(payload, listStart, arrayEnd, stride, headerBytes)) return undefined;
  return {
    payload,
    arrayStart,
    arrayEnd,
    bytes: payload,
    first: listStart + headerBytes,
    stride,
    count,
    keyBytes,
    foreign: undefined,
    foreignCount: 0,
  };
}

/** Length of the bin header at `at` when it announces exactly `keyBytes` bytes. */
function binHeaderBytes(payload: Buffer, at: number, keyBytes: number): number | undefined {
  const left = payload.length - at;
  switch (payload[at]) {
    case 0xc4:
      return left >= 2 && payload[at + 1] === keyBytes ? 2 : undefined;
    case 0xc5:
      return left >= 3 && payload.readUInt16BE(at + 1) === keyBytes ? 3 : undefined;
    case 0xc6:
      return left >= 5 && payload.readUInt32BE(at + 1) === keyBytes ? 5 : undefined;
    default:
      return undefined;
  }
}

function hasEqualHeaders(
  payload: Buffer,
  start: number,
  end: number,
  stride: number,
  headerBytes: number,
): boolean {
  if (headerBytes === 2) {
    // The form every known peer sends; a loop of its own keeps it at two compares a key.
    const kind = payload[start];
    const length = payload[start + 1];
    for (let at = start + stride; at < end; at += stride) {
      if (payload[at] !== kind || payload[at + 1] !== length) return false;
    }
    return true;
  }
  for (let at = start + stride; at < end; at += stride) {
    for (let byte = 0; byte < headerBytes; byte++) {
      if (payload[at + byte] !== payload[start + byte]) return false;
    }
  }
  return true;
}

/** Keys of any lengths and headers, as a packed copy; keys of another length than the node's are marked. */
export function readKeys(reader: Reader): KeyList {
  const { payload, limits } = reader;
  const keyBytes = limits.keyBytes;
  const arrayStart = reader.position;
  const packedBytes = reader.enterBin();
  if (packedBytes !== undefined) {
    throw new ScanFault(
      'invalid_field',
      `keys must be a whole number of keys of ${keyBytes} bytes, found one bin of ${packedBytes} bytes`,
    );
  }
  const count = requireList(reader, 'keys');
  const bytes = Buffer.alloc(count * keyBytes);
  const foreign = new Uint8Array((count + 7) >> 3);
  let foreignCount = 0;
  for (let i = 0; i < count; i++) {
    const head = reader.peek();
    const length = reader.enterBin();
    if (length === undefined) {
      throw new ScanFault('invalid_field', `keys[${i}] must be bin, found ${kindOf(head)}`);
    }
    const start = reader.position;
    reader.position += length;
    if (length === keyBytes) {
      payload.copy(bytes, i * keyBytes, start, reader.position);
    } else {
      foreign[i >> 3] |= 1 << (i & 7);
      foreignCount++;
    }
  }
  return {
    payload,
    arrayStart,
    arrayEnd: reader.position,
    bytes,
    first: 0,
    stride: keyBytes,
    count,
    keyBytes,
    foreign: foreignCount === 0 ? undefined : foreign,
    foreignCount,
  };
}

/** `hits` as a view of the message, one byte {@link HIT} or {@link MISS} each. */
export function tryHits(reader: Reader): Uint8Array | undefined {
  const { payload } = reader;
  const listStart = reader.position;
  const count = enterList(reader, 'hits');
  if (count === undefined) return undefined;
  const start = reader.position;
  const end = start + count;
  for (let at = start; at < end; at++) {
    if (payload[at] !== HIT && payload[at] !== MISS) {
      reader.position = listStart;
      return undefined;
    }
  }
  reader.position = end;
  return payload.subarray(start, end);
}

/** Says what is wrong with a `hits` that {@link tryHits} did not take. */
export function readHits(reader: Reader): never {
  const count = requireList(reader, 'hits');
  for (let i = 0; i < count; i++) reader.readBoolean(`hits[${i}]`);
  throw new ScanFault('undecodable', 'hits ends inside the list');
}

/** Slots of a fetch. Those above {@link MAX_BLOCK_INDEX} become {@link INDEX_OVER_RANGE}. */
export function tryIndexes(reader: Reader): IndexList | undefined {
  const listStart = reader.position;
  const count = enterList(reader, 'block_indexes');
  if (count === undefined) return undefined;
  const indexes = new Int32Array(count);
  let overRangeCount = 0;
  for (let i = 0; i < count; i++) {
    const index = reader.remaining === 0 ? undefined : reader.tryInteger();
    if (index === undefined || index < 0) {
      reader.position = listStart;
      return undefined;
    }
    if (index > MAX_BLOCK_INDEX) {
      overRangeCount++;
      indexes[i] = INDEX_OVER_RANGE;
    } else {
      indexes[i] = index;
    }
  }
  return { indexes, overRangeCount };
}

/** Says what is wrong with a `block_indexes` that {@link tryIndexes} did not take. */
export function readIndexes(reader: Reader): never {
  const count = requireList(reader, 'block_indexes');
  for (let i = 0; i < count; i++) {
    const head = reader.peek();
    const index = reader.tryInteger();
    if (index === undefined) {
      throw new ScanFault('invalid_field', `block_indexes[${i}] must be an integer, found ${kindOf(head)}`);
    }
    if (index < 0) throw new ScanFault('invalid_field', `block_indexes[${i}] must not be negative`);
  }
  throw new ScanFault('undecodable', 'block_indexes ends inside the list');
}

function enterList(reader: Reader, field: string): number | undefined {
  const count = reader.enterArray();
  if (count !== undefined) checkLength(count, field, reader.limits);
  return count;
}

function requireList(reader: Reader, field: string): number {
  const head = reader.peek();
  const count = enterList(reader, field);
  if (count === undefined) {
    throw new ScanFault('invalid_field', `${field} must be an array, found ${kindOf(head)}`);
  }
  return count;
}

// Checked while the map is walked, whatever the type turns out to be: stepping over an endless list costs as much as
// reading it.
function checkLength(count: number, field: string, limits: ProtocolLimits): void {
  if (count > limits.keyCount) {
    throw new ScanFault(
      'over_limit',
      `${field} has ${count} entries, at most ${limits.keyCount} are allowed`,
    );
  }
}
