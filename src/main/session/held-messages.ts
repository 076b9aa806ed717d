// Messages that are kept until they are dealt with: bounded in bytes for each peer and for the node, whatever their number.
//
// A list of keys is never copied out of its message, so whatever waits (for blocks, for room, for a write to end) keeps
// the whole message alive: 1,024 rounds of 8 MiB would be 8 GiB for one peer.

import type { KeyList } from '../protocol/messages.js';

/** As much as our own send queue to a peer may hold. */
const MAX_HELD_BYTES = 64 * 1024 * 1024;
/** What eight such peers hold: the bound of a node that has 128. */
const MAX_NODE_HELD_BYTES = 8 * MAX_HELD_BYTES;

/** What all peers of a node hold together. */
export class HeldBudget {
  bytes = 0;

  hasRoomFor(bytes: number): boolean {
    return this.bytes + bytes <= MAX_NODE_HELD_BYTES;
  }
}

/** Of one peer. */
export class HeldMessages {
  readonly #budget: HeldBudget;
  readonly #bytesOf = new Map<object, number>();
  #bytes = 0;

  constructor(budget: HeldBudget) {
    this.#budget = budget;
  }

  get bytes(): number {
    return this.#bytes;
  }

  /** A peer's single message is always heard, however large --max-message-bytes lets it be. */
  hasRoomFor(keys: KeyList): boolean {
    const bytes = bytesOf(keys);
    return this.#bytes === 0 || (this.#bytes + bytes <= MAX_HELD_BYTES && this.#budget.hasRoomFor(bytes));
  }

  /** `owner` keeps the message from here on. */
  add(owner: object, keys: KeyList): void {
    const bytes = bytesOf(keys);
    this.#bytesOf.set(owner, bytes);
    this.#bytes += bytes;
    this.#budget.bytes += bytes;
  }

  /** An owner that is not known any more is left alone. */
  drop(owner: object): void {
    const bytes = this.#bytesOf.get(owner) ?? 0;
    this.#bytes -= bytes;
    this.#budget.bytes -= bytes;
    this.#bytesOf.delete(owner);
  }
}

function bytesOf({ payload, bytes }: KeyList): number {
  return payload.length + (bytes === payload ? 0 : bytes.length);
}
