// Messages that are kept until they are dealt with: bounded in bytes for each peer and for the node, whatever their number.
//
// A list of keys is never copied out of its message, so whatever waits (for blocks, for room, for a write to end) keeps
// the whole message alive: 1,024 rounds of 8 MiB would be 8 GiB for one peer.

import type { KeyList } from '../protocol/messages.js';
import { ReceivedKeys } from '../protocol/received.js';

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

/** Who keeps a message; the bytes are accounted for here. */
export interface MessageHolder {
  heldBytes: number;
}

/** Of one peer. */
export class HeldMessages {
  readonly #budget: HeldBudget;
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

  /** `holder`, which keeps none yet, keeps the message from here on. */
  add(holder: MessageHolder, keys: KeyList): void {
    holder.heldBytes = bytesOf(keys);
    this.#bytes += holder.heldBytes;
    this.#budget.bytes += holder.heldBytes;
  }

  /** A holder that keeps none is left alone. */
  drop(holder: MessageHolder): void {
    this.#bytes -= holder.heldBytes;
    this.#budget.bytes -= holder.heldBytes;
    holder.heldBytes = 0;
  }
}

function bytesOf(keys: KeyList): number {
  if (keys instanceof ReceivedKeys) return keys.messageBytes;
  const { payload, bytes } = keys;
  return payload.length + (bytes === payload ? 0 : bytes.length);
}
