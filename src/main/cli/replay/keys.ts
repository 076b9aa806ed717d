// From a trace's block ids to block keys: a 32-byte hash and a four-byte group index of zero.
import { createHash } from 'node:crypto';

/** Bytes of a replay's keys: SHA-256 and a big-endian group index. */
export const REPLAY_KEY_BYTES = 36;

const HASH_BYTES = 32;

/** Sets the replay's keys apart from those of an engine that hashes small integers. */
const SALT = 'kvpeer replay block';

/** Packed keys of the given ids, `ids.length * REPLAY_KEY_BYTES` bytes, in order. */
export function keysOf(ids: readonly number[]): Uint8Array {
  const keys = new Uint8Array(ids.length * REPLAY_KEY_BYTES);
  ids.forEach((id, index) => {
    const hash = createHash('sha256').update(`${SALT} ${id}`).digest();
    keys.set(hash.subarray(0, HASH_BYTES), index * REPLAY_KEY_BYTES);
  });
  return keys;
}
