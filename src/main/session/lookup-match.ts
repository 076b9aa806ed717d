// Which open lookup an answer belongs to, and which of its keys it answers.

import type { KeyList } from '../protocol/messages.js';
import { DEFAULT_LIMITS } from '../protocol/limits.js';
import { HIT, MISS } from '../protocol/messages.js';
import { scan } from '../protocol/scan.js';
import type { KeySpan } from '../shards/shard-client.js';

/** The `keys` array of a `lookup` frame that this node wrote. */
export function askedKeys(frame: Buffer, keyBytes: number): KeyList {
  const message = scan(frame, { ...DEFAULT_LIMITS, keyBytes });
  if (message.type !== 'lookup') throw new Error(`own lookup frame does not scan: ${message.type}`);
  return message.keys;
}

/** Packed keys, `count * keyBytes` bytes: a copy without gaps, or the span itself when it has none. */
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

/**
 * Applies an answer to the statuses of a lookup (0: not answered yet). The usual answer repeats the request's `keys`
 * byte for byte and is recognised by one comparison; a split or reordered one goes through a table.
 *
 * @param asked  the `keys` array of the request as it was sent
 * @returns how many positions got their first answer; 0 when the answer is for other keys
 */
export function applyAnswer(asked: KeyList, statuses: Uint8Array, answer: KeyList, hits: Uint8Array): number {
  if (answer.count === asked.count && isVerbatim(asked, answer)) {
    let answeredCount = 0;
    for (let i = 0; i < statuses.length; i++) {
      if (statuses[i] !== 0) continue;
      statuses[i] = hits[i] === HIT ? HIT : MISS;
      answeredCount++;
    }
    return answeredCount;
  }
  return applyByTable(asked, statuses, answer, hits);
}

function isVerbatim(asked: KeyList, answer: KeyList): boolean {
  return (
    asked.payload.compare(
      answer.payload,
      answer.arrayStart,
      answer.arrayEnd,
      asked.arrayStart,
      asked.arrayEnd,
    ) === 0
  );
}

function keyText(list: KeyList, index: number): string {
  const at = list.first + index * list.stride;
  return list.bytes.toString('latin1', at, at + list.keyBytes);
}

function applyByTable(asked: KeyList, statuses: Uint8Array, answer: KeyList, hits: Uint8Array): number {
  const positions = new Map<string, number[]>();
  for (let i = 0; i < statuses.length; i++) {
    if (statuses[i] !== 0) continue;
    const key = keyText(asked, i);
    const known = positions.get(key);
    if (known) known.push(i);
    else positions.set(key, [i]);
  }
  let answeredCount = 0;
  for (let i = 0; i < answer.count; i++) {
    for (const position of positions.get(keyText(answer, i)) ?? []) {
      if (statuses[position] !== 0) continue;
      statuses[position] = hits[i] === HIT ? HIT : MISS;
      answeredCount++;
    }
  }
  return answeredCount;
}
