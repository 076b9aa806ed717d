// Messages of one peer that are kept until they are dealt with: bounded in bytes, whatever their number.
//
// A list of keys is never copied out of its message, so whatever waits (for blocks, for room, for a write to end) keeps
// the whole message alive: 1,024 rounds of 8 MiB would be 8 GiB for one peer.

import type { KeyList } from '../protocol/messages.js';

/** As much as our own send queue to a peer may hold. */
const MAX_HELD_BYTES = 64 * 1024 * 1024;

export class HeldMessages {
  readonly #bytesOf = new Map<object, number>();
  #bytes = 0;

  get bytes(): number {
    return this.#bytes;
  }

  /** A single message is always heard, however large --max-message-bytes lets it be. */
  hasRoomFor(keys: KeyList): boolean {
    return this.#bytes === 0 || this.#bytes + bytesOf(keys) <= MAX_HELD_BYTES;
  }

  /** `owner` keeps the message from here on. */
  add(owner: object, keys: KeyList): void {
    const bytes = bytesOf(keys);
    this.#bytesOf.set(owner, bytes);
    this.#bytes += bytes;
  }

  /** An owner that is not known any more is left alone. */
  drop(owner: object): void {
    this.#bytes -= this.#bytesOf.get(owner) ?? 0;
    this.#bytesOf.delete(owner);
  }
}

function bytesOf({ payload, bytes }: KeyList): number {
  return payload.length + (bytes === payload ? 0 : bytes.length);
}
