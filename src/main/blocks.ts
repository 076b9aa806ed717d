// Blocks of the local pool for callers: pinning, storing, reserving, with the views into shared memory.

import { KvpeerError } from './errors.js';
import { PositionStatus } from '../shared/operations.js';
import type {
  ContentTools,
  Hits,
  Load,
  PackedKeys,
  PinnedBlocks,
  Reservation,
  StoreResult,
} from './peer-api.js';
import { hitsOf } from './hits.js';
import { HIT, MISS } from './protocol/messages.js';
import type { Joins } from './session/roles.js';
import { failureError, submit, submitForResult } from './shards/promises.js';
import type { KeySpan, ShardClient, SlotSet } from './shards/shard-client.js';

/** Makes the bytes of the set's reserved positions. */
type WriteBlocks = (
  set: SlotSet,
  done: (failure: Parameters<typeof failureError>[1] | undefined, none: undefined) => void,
) => void;

interface Published {
  readonly result: StoreResult;
  /** Keys that another writer had in hand and did not bring. */
  readonly notBroughtCount: number;
}

export interface BlocksOptions {
  readonly shards: ShardClient;
  readonly pool: SharedArrayBuffer;
  readonly joins: Joins;
  /** Keep a checksum of every block that is stored. */
  readonly hasChecksums: boolean;
  /** How long a store waits for blocks that another store or load is writing. */
  readonly storeMs: number;
  now(): number;
}

/** What becomes of the pins of a stored block: kept for a remote decoder, or given back. */
export type StoredPins = (set: SlotSet) => void;

export class Blocks {
  readonly #options: BlocksOptions;
  readonly #setsOf = new WeakMap<PinnedBlocks, readonly SlotSet[]>();

  constructor(options: BlocksOptions) {
    this.#options = options;
  }

  /** @throws KVPEER_INVALID_ARGUMENT when the length is no multiple of the node's key length */
  span(keys: PackedKeys): KeySpan {
    const { keyBytes } = this.#options.shards;
    if (!(keys instanceof Uint8Array) || keys.byteLength % keyBytes !== 0) {
      throw new KvpeerError(
        'KVPEER_INVALID_ARGUMENT',
        `keys must be one Uint8Array of count * ${keyBytes} bytes, the node's key length; got ${lengthOrType(keys)}`,
      );
    }
    return { bytes: keys, first: 0, stride: keyBytes, count: keys.byteLength / keyBytes };
  }

  /** The bytes of a slot: a view of the pool, valid as long as the slot is pinned or reserved by the caller. */
  view(slot: number): Uint8Array {
    const { shards, pool } = this.#options;
    return new Uint8Array(pool, slot * shards.blockBytes, shards.blockBytes);
  }

  /** Which keys are READY now; nothing is pinned. */
  async probe(keys: PackedKeys): Promise<Hits> {
    const span = this.span(keys);
    if (span.count === 0) return hitsOf(new Uint8Array(0));
    const { shards } = this.#options;
    const set = await submitForResult<SlotSet>('probe', (done) => {
      shards.match(span, { pin: false }, done);
    });
    const statuses = foundStatuses(set);
    shards.release(set);
    return hitsOf(statuses);
  }

  async pin(keys: PackedKeys): Promise<PinnedBlocks> {
    const span = this.span(keys);
    if (span.count === 0) return this.pinned(0, [], new Int32Array(0));
    const { shards } = this.#options;
    const set = await submitForResult<SlotSet>('pin', (done) => {
      shards.match(span, {}, done);
    });
    return this.pinned(span.count, [set], slotsOf(set));
  }

  /** Pins that a caller owns until it releases them. */
  pinned(count: number, sets: readonly SlotSet[], slots: Int32Array): PinnedBlocks {
    const { shards } = this.#options;
    let presentCount = 0;
    for (const slot of slots) if (slot >= 0) presentCount++;
    let isReleased = false;
    const assertHeld = (): void => {
      if (!isReleased) return;
      throw new KvpeerError(
        'KVPEER_INVALID_ARGUMENT',
        'these blocks were released already; pin or load them again',
      );
    };
    const pinned: PinnedBlocks = {
      count,
      slots,
      presentCount,
      block: (index) => {
        assertHeld();
        return index >= 0 && index < count && slots[index] >= 0 ? this.view(slots[index]) : undefined;
      },
      release: () => {
        assertHeld();
        isReleased = true;
        this.#setsOf.delete(pinned);
        for (const set of sets) shards.release(set);
      },
    };
    this.#setsOf.set(pinned, sets);
    return pinned;
  }

  /** Contents that are a function of the key, made and checked in the workers: for replay and tests. */
  contentTools(): ContentTools {
    return {
      storeFilled: (keys) => this.storeFilled(keys),
      verify: async (pinned) => {
        const sets = this.#setsOf.get(pinned);
        if (!sets) {
          throw new KvpeerError(
            'KVPEER_INVALID_ARGUMENT',
            'these blocks are not pinned by this peer, or were released; load them again',
          );
        }
        let total = 0;
        for (const set of sets) {
          const { mismatchCount } = await submit<{ readonly mismatchCount: number }>('verify', (done) => {
            this.#options.shards.verify(set, done);
          });
          total += mismatchCount;
        }
        return total;
      },
    };
  }

  /** Moves the pins of a load on under another face (its count of pulled blocks), so that verify() knows them. */
  asLoad(pinned: PinnedBlocks, pulledCount: number): Load {
    const load: Load = {
      ...pinned,
      pulledCount,
      bytesPulled: pulledCount * this.#options.shards.blockBytes,
    };
    this.#setsOf.set(load, this.#setsOf.get(pinned) ?? []);
    return load;
  }

  async store(keys: PackedKeys, blocks: Uint8Array, keep?: StoredPins): Promise<StoreResult> {
    const span = this.span(keys);
    const { shards } = this.#options;
    if (!(blocks instanceof Uint8Array) || blocks.byteLength !== span.count * shards.blockBytes) {
      throw new KvpeerError(
        'KVPEER_INVALID_ARGUMENT',
        `blocks must be one Uint8Array of ${span.count} x ${shards.blockBytes} bytes for ${span.count} keys, back to back; got ${lengthOrType(blocks)}`,
      );
    }
    return this.#write(
      span,
      (set, done) => {
        shards.copyIn(set, blocks, done);
      },
      keep,
    );
  }

  /** Stores the content that belongs to each key, made in the workers. */
  storeFilled(keys: PackedKeys, keep?: StoredPins): Promise<StoreResult> {
    const { shards } = this.#options;
    return this.#write(
      this.span(keys),
      (set, done) => {
        shards.fill(set, done);
      },
      keep,
    );
  }

  /**
   * Another writer may have had some of the keys in hand and then not brought them: a pull from a source that does not
   * hold them. These are written in a second go, so that a guess does not cost the block that was made meanwhile.
   */
  async #write(span: KeySpan, write: WriteBlocks, keep: StoredPins | undefined): Promise<StoreResult> {
    if (span.count === 0) return { storedCount: 0, presentCount: 0, notStoredCount: 0 };
    const deadlineMs = this.#options.now() + this.#options.storeMs;
    const first = await this.#writeOnce(span, write, keep, deadlineMs);
    if (first.notBroughtCount === 0) return first.result;
    const { result } = await this.#writeOnce(span, write, keep, deadlineMs);
    const hereCount = span.count - result.notStoredCount;
    const storedCount = Math.min(hereCount, first.result.storedCount + result.storedCount);
    return { ...result, storedCount, presentCount: hereCount - storedCount };
  }

  async #writeOnce(
    span: KeySpan,
    write: WriteBlocks,
    keep: StoredPins | undefined,
    deadlineMs: number,
  ): Promise<Published> {
    const { shards } = this.#options;
    const set = await submitForResult<SlotSet>('store', (done) => {
      shards.reserve(span, done);
    });
    if (set.reservedCount > 0) {
      const writing = submit<undefined>('store', (done) => {
        write(set, done);
      });
      await this.#orAbandon(
        set,
        writing.then(() => this.#checksum(set)),
      );
    }
    return this.#publish(span, set, keep, deadlineMs);
  }

  /** Reserved slots whose bytes cannot be completed go back. */
  async #orAbandon(set: SlotSet, completing: Promise<void>): Promise<void> {
    try {
      await completing;
    } catch (error) {
      await submit<undefined>('store', (done) => {
        this.#options.shards.abandon(set, { quarantine: false }, done);
      });
      throw error;
    }
  }

  async #checksum(set: SlotSet): Promise<void> {
    if (!this.#options.hasChecksums || set.reservedCount === 0) return;
    await submit<undefined>('checksum', (done) => {
      this.#options.shards.checksum(set, done);
    });
  }

  async reserve(keys: PackedKeys, keep?: StoredPins): Promise<Reservation> {
    const span = this.span(keys);
    const owned: KeySpan = { ...span, bytes: span.count === 0 ? keys : keys.slice() };
    const { shards } = this.#options;
    // No operation on the pool is about no keys: an empty list has its answer here.
    const set =
      span.count === 0
        ? undefined
        : await submitForResult<SlotSet>('reserve', (done) => {
            shards.reserve(owned, done);
          });
    const slots = new Int32Array(span.count).fill(-1);
    for (let i = 0; i < span.count; i++) {
      if (set?.statuses[i] === PositionStatus.Reserved) slots[i] = set.slots[i];
    }
    let isOpen = true;
    const close = (): void => {
      if (!isOpen) {
        throw new KvpeerError(
          'KVPEER_INVALID_ARGUMENT',
          'this reservation was committed or cancelled already; reserve again',
        );
      }
      isOpen = false;
    };
    return {
      count: span.count,
      slots,
      block: (index) =>
        isOpen && index >= 0 && index < span.count && slots[index] >= 0 ? this.view(slots[index]) : undefined,
      commit: async () => {
        close();
        if (set === undefined) return { storedCount: 0, presentCount: 0, notStoredCount: 0 };
        await this.#orAbandon(set, this.#checksum(set));
        const deadlineMs = this.#options.now() + this.#options.storeMs;
        return (await this.#publish(owned, set, keep, deadlineMs)).result;
      },
      cancel: async () => {
        close();
        if (set === undefined) return;
        await submit<undefined>('cancel', (done) => {
          shards.abandon(set, { quarantine: false }, done);
        });
      },
    };
  }

  /** Reserved positions become visible; blocks that others were writing are waited for, until `deadlineMs`. */
  async #publish(
    span: KeySpan,
    set: SlotSet,
    keep: StoredPins | undefined,
    deadlineMs: number,
  ): Promise<Published> {
    const { shards, joins } = this.#options;
    let notBroughtCount = 0;
    const storedCount = set.reservedCount;
    let presentCount = set.pinnedCount;
    const pending = pendingKeys(span, set, shards.keyBytes);
    if (pending.count > 0) {
      // Our own blocks first: a later position of the list may be waiting for one of them.
      await submit<undefined>('store', (done) => {
        shards.publish(set, { keepPins: true }, done);
      });
      await new Promise<void>((resolve) => {
        joins.waitSettled(set, deadlineMs, resolve);
      });
      // What is stored is stored, and kept, whether or not the others' blocks can be looked at.
      const settle: StoredPins =
        keep ??
        ((own) => {
          shards.release(own);
        });
      try {
        const joined = await submitForResult<SlotSet>('store', (done) => {
          shards.match(pending, {}, done);
        });
        presentCount += joined.pinnedCount;
        notBroughtCount = joined.count - joined.pinnedCount - joined.pendingCount;
        settle(joined);
      } finally {
        settle(set);
      }
    } else {
      await submit<undefined>('store', (done) => {
        shards.publish(set, { keepPins: keep !== undefined }, (failure, result) => {
          // Not after the await: a fetch that waited for these blocks may end in this turn, and lets go what is kept then.
          if (failure === undefined) keep?.(set);
          done(failure, result);
        });
      });
    }
    const notStoredCount = span.count - storedCount - presentCount;
    return { result: { storedCount, presentCount, notStoredCount }, notBroughtCount };
  }

  async evict(keys: PackedKeys): Promise<number> {
    const span = this.span(keys);
    if (span.count === 0) return 0;
    const { evictedCount } = await submit<{ readonly evictedCount: number }>('evict', (done) => {
      this.#options.shards.evict(span, done);
    });
    return evictedCount;
  }
}

function lengthOrType(value: unknown): string {
  if (value instanceof Uint8Array) return `${value.byteLength} bytes`;
  return typeof value === 'object' && value !== null ? Object.prototype.toString.call(value) : typeof value;
}

/** One byte per key, as lookups answer: 0xc3 where the set has the block. */
export function foundStatuses(set: SlotSet): Uint8Array {
  const result = new Uint8Array(set.count);
  const { statuses } = set;
  for (let i = 0; i < set.count; i++) {
    result[i] = statuses[i] === PositionStatus.Found || statuses[i] === PositionStatus.Pinned ? HIT : MISS;
  }
  return result;
}

/** Slots of the Pinned positions, -1 elsewhere. */
export function slotsOf(set: SlotSet): Int32Array {
  const slots = new Int32Array(set.count).fill(-1);
  const { statuses } = set;
  for (let i = 0; i < set.count; i++) if (statuses[i] === PositionStatus.Pinned) slots[i] = set.slots[i];
  return slots;
}

function pendingKeys(span: KeySpan, set: SlotSet, keyBytes: number): KeySpan {
  const bytes = new Uint8Array(set.pendingCount * keyBytes);
  const { statuses } = set;
  let count = 0;
  for (let i = 0; i < set.count && bytes.length > 0; i++) {
    if (statuses[i] !== PositionStatus.Pending) continue;
    const at = span.first + i * span.stride;
    bytes.set(span.bytes.subarray(at, at + keyBytes), count++ * keyBytes);
  }
  return { bytes, first: 0, stride: keyBytes, count };
}
