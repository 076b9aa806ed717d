// Which open lookup an answer belongs to, and which of its keys it answers.

import type { KeyList } from '../protocol/messages.js';
import { freePayload } from '../protocol/message-memory.js';
import { DEFAULT_LIMITS } from '../protocol/limits.js';
import { scan } from '../protocol/scan.js';
import type { KeySpan } from '../shards/shard-client.js';

/**
 * The keys of a `lookup` frame that this node wrote. The frame is read when they are needed, which an answer that names
 * its lookup does not.
 */
export class SentKeys {
  #keys: KeyList | undefined;

  constructor(
    private readonly frame: Buffer,
    private readonly keyBytes: number,
    /** Most keys in one message. */
    private readonly keyCount: number,
  ) {}

  get list(): KeyList {
    return (this.#keys ??= this.#read());
  }

  /** The frame has left and is not needed any more: its memory is given back, and there are no keys afterwards. */
  free(): void {
    freePayload(this.frame);
  }

  #read(): KeyList {
    const { frame, keyBytes, keyCount } = this;
    const message = scan(frame, { ...DEFAULT_LIMITS, messageBytes: frame.length, keyBytes, keyCount });
    if (message.type !== 'lookup') throw new Error(`own lookup frame does not scan: ${message.type}`);
    return message.keys;
  }
}

/** Packed keys, `count * keyBytes` bytes: a copy without gaps, or a view of the span when it has none. */
export function packKeys(span: KeySpan, keyBytes: number): Uint8Array {
  const { bytes, first, stride, count } = span;
  if (stride === keyBytes || count === 1) return bytes.subarray(first, first + count * keyBytes);
  const packed = new Uint8Array(count * keyBytes);
  for (let i = 0; i < count; i++) {
    const at = first + i * stride;
    packed.set(bytes.subarray(at, at + keyBytes), i * keyBytes);
  }
  return packed;
}

/** The usual answer repeats the request's `keys` byte for byte, and one comparison tells. */
export function isVerbatim(asked: KeyList, answer: KeyList): boolean {
  return (
    answer.count === asked.count &&
    asked.payload.compare(
      answer.payload,
      answer.arrayStart,
      answer.arrayEnd,
      asked.arrayStart,
      asked.arrayEnd,
    ) === 0
  );
}

/**
 * An answer to exactly these keys, in their order. Only the first answer to a key counts.
 *
 * @returns how many keys got it
 */
export function applyVerbatim(statuses: Uint8Array, openCount: number, hits: Uint8Array): number {
  if (openCount === statuses.length) {
    statuses.set(hits);
    return openCount;
  }
  let answeredCount = 0;
  for (let i = 0; i < statuses.length; i++) {
    if (statuses[i] !== 0) continue;
    statuses[i] = hits[i];
    answeredCount++;
  }
  return answeredCount;
}

/**
 * An answer that is split, merged or in another order, through a table. Only the first answer to a key counts.
 *
 * @param statuses  what is known of each asked key, 0 where nothing is yet
 * @returns how many keys got it; 0 when the answer is for other keys
 */
export function applyByTable(
  asked: KeyList,
  statuses: Uint8Array,
  answer: KeyList,
  hits: Uint8Array,
): number {
  const answers = new Map<string, number>();
  for (let i = 0; i < answer.count; i++) {
    const key = keyText(answer, i);
    if (!answers.has(key)) answers.set(key, hits[i]);
  }
  let answeredCount = 0;
  for (let i = 0; i < statuses.length; i++) {
    if (statuses[i] !== 0) continue;
    const status = answers.get(keyText(asked, i));
    if (status === undefined) continue;
    statuses[i] = status;
    answeredCount++;
  }
  return answeredCount;
}

/** HIT and MISS differ in their lowest bit, and a key without an answer is 0. By index: an iterator takes ten times as long. */
export function countHits(statuses: Uint8Array): number {
  let count = 0;
  let at = statuses.length;
  while (at-- > 0) count += statuses[at] & 1;
  return count;
}

function keyText(list: KeyList, index: number): string {
  const at = list.first + index * list.stride;
  return list.bytes.toString('latin1', at, at + list.keyBytes);
}
