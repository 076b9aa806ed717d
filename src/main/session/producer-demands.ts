// Fetches without a lookup before them: what is there is written, the rest is waited for (prefill/decode).
//
//     fetch ---> look ---> all found -------------------------------------------------> written ---> done
//                 ^  |
//                 |  +---> some found: written ----+
//                 |  +---> some missing: waits ----+--- wait over, request ended, reaped, ttl ----> failed, or partly
//                 +------- something was stored ---+
//
//     A block that is missing has no slot to wait for, so every publish of the node is a reason to look again, but not
//     at once for everybody: a demand looks at most every 10 ms, all of a peer at most once per ms. Blocks that are
//     stored for the demand's own id are looked for at once.
//
//     wait, from receipt of the fetch: plainPostMs for a plain peer (nothing may be posted to it later), unclaimedStoreMs
//     for a kvpeer (as long as stored blocks wait for their fetch).
//
//     A peer with `partial_fetch` gets what was found until then: what is being written is waited for.

import type { FetchMessage } from '../protocol/messages.js';
import type { DataPeer, Failure, SlotSet } from '../shards/shard-client.js';
import { bitmapBytes } from '../../shared/bitmap.js';
import { Outcome, PositionStatus } from '../../shared/operations.js';
import { Deadlines } from './deadlines.js';
import { pickKeys, pickValues } from './key-subset.js';
import type { Demand, Fetch, Round, Written } from './producer-rounds.js';
import type { ProducerWrites } from './producer-writes.js';
import type { RoleContext } from './roles.js';

export interface ProducerDemandsOptions {
  readonly context: RoleContext;
  readonly writes: ProducerWrites;
  /**
   * Most slots that the demands of this peer may pin at one time, and most keys in the results they keep (which take
   * room in the request arena): a demand that has found something counts with all keys it looked for.
   */
  readonly pinLimit: number;
  /** The fetch has its result, once. */
  readonly onResult: (fetch: Fetch, written: Written) => void;
}

/** A demand looks again after a publish at most this often ... */
const LOOK_SPACING_MS = 10;
/** ... and all demands of a peer together at most this often. */
const LOOK_SPACING_PER_DEMAND_MS = 1;

export class ProducerDemands {
  readonly #context: RoleContext;
  readonly #writes: ProducerWrites;
  readonly #pinLimit: number;
  readonly #onResult: ProducerDemandsOptions['onResult'];
  readonly #waits: Deadlines<Fetch>;
  /** Demands that look again soon. */
  readonly #looks: Deadlines<Fetch>;
  /** Demands that wait for something to be stored. */
  readonly #idle = new Set<Fetch>();
  /** Demands with a match under way. */
  readonly #matching = new Set<Fetch>();
  /** Demands that wait until pins of others are gone. */
  #pinQueue: Fetch[] = [];
  #waitingCount = 0;
  #pinCount = 0;

  constructor({ context, writes, pinLimit, onResult }: ProducerDemandsOptions) {
    this.#context = context;
    this.#writes = writes;
    this.#pinLimit = pinLimit;
    this.#onResult = onResult;
    const queue = (): Deadlines<Fetch> =>
      new Deadlines((timeMs) => {
        context.wakeAt(timeMs);
      });
    this.#waits = queue();
    this.#looks = queue();
  }

  /** Fetches whose blocks have not all been found. */
  get waitingCount(): number {
    return this.#waitingCount;
  }

  get nextMs(): number {
    return Math.min(this.#waits.nextMs, this.#looks.nextMs);
  }

  /** `isLast`: no blocks will be stored for the id any more; what the first look does not find fails the fetch. */
  start(round: Round, message: FetchMessage, peer: DataPeer, isLast: boolean): void {
    const demand: Demand = {
      positions: undefined,
      unwrittenCount: message.keys.count,
      isMatching: false,
      isDirty: false,
      isLast,
      isLimited: false,
      lastLookMs: -Infinity,
      written: this.#isPartial() ? new Uint8Array(bitmapBytes(message.keys.count)) : undefined,
      isOver: false,
    };
    const fetch = this.#writes.begin(round, message, peer, demand);
    this.#waitingCount += 1;
    const { plainPostMs, unclaimedStoreMs } = this.#context.times;
    this.#waits.set(fetch, fetch.receivedMs + (this.#writes.isKvpeer ? unclaimedStoreMs : plainPostMs));
    this.#look(fetch, demand);
  }

  /** The fetch is not wanted any more, or has its result. Before it is closed. */
  forget(fetch: Fetch): void {
    if (isWaiting(fetch)) this.#waitingCount -= 1;
    this.#waits.delete(fetch);
    this.#looks.delete(fetch);
    this.#idle.delete(fetch);
  }

  onSettled(): void {
    if (this.#waitingCount === 0) return;
    const nowMs = this.#context.now();
    for (const { demand } of this.#matching) if (demand !== undefined) demand.isDirty = true;
    for (const fetch of this.#idle) this.#lookSoon(fetch, nowMs);
  }

  /** Blocks were stored for its id, or (`isLast`) no more will be. */
  onStored(fetch: Fetch, isLast: boolean): void {
    const { demand } = fetch;
    if (demand === undefined || !isWaiting(fetch)) return;
    demand.isLast ||= isLast;
    if (demand.isMatching) demand.isDirty = true;
    else if (!demand.isLimited) this.#look(fetch, demand);
  }

  tick(nowMs: number): void {
    this.#waits.expire(nowMs, (fetch) => {
      if (fetch.demand !== undefined) this.#giveUp(fetch, fetch.demand);
    });
    this.#looks.expire(nowMs, (fetch) => {
      if (fetch.demand !== undefined) this.#look(fetch, fetch.demand);
    });
  }

  /** Matches what no write was started for. One whose pins have no room waits until those of others are gone. */
  #look(fetch: Fetch, demand: Demand): void {
    this.#idle.delete(fetch);
    this.#looks.delete(fetch);
    if (this.#isGivenUp(fetch)) {
      this.#onResult(fetch, 'failed');
      return;
    }
    const { keys, blockIndexes } = fetch.message;
    const { shards } = this.#context;
    const pinLimit = Math.min(demand.positions?.length ?? keys.count, this.#pinLimit);
    demand.isMatching = true;
    if (this.#pinCount > 0 && this.#pinCount + pinLimit > this.#pinLimit) {
      this.#pinQueue.push(fetch);
      return;
    }
    demand.isDirty = false;
    demand.lastLookMs = this.#context.now();
    this.#pinCount += pinLimit;
    this.#matching.add(fetch);
    const indexes = pickValues(blockIndexes, demand.positions);
    const span = demand.positions === undefined ? keys : pickKeys(keys, demand.positions, shards.keyBytes);
    const destinations = { indexes, numBlocks: fetch.peer.numBlocks };
    shards.match(span, { pinLimit, destinations }, (failure, set) => {
      this.#matching.delete(fetch);
      demand.isMatching = false;
      if (set === undefined) {
        this.#pinCount -= pinLimit;
        if (!fetch.isClosed) this.#onLookFailed(fetch, demand, failure);
      } else if (fetch.isClosed || demand.isOver) {
        this.#release(set, pinLimit);
        this.#conclude(fetch, demand);
      } else {
        this.#onLooked(fetch, demand, set, indexes, pinLimit);
      }
      this.#pumpPinQueue();
    });
  }

  #onLookFailed(fetch: Fetch, demand: Demand, failure: Failure | undefined): void {
    const { counters } = this.#context;
    if (failure?.code === 'outcome' && failure.outcome === Outcome.BadDestination) {
      counters.rejection('bad_destination');
      this.#onResult(fetch, 'failed');
    } else if (demand.isLast || demand.isOver) {
      counters.miss(failure?.code === 'KVPEER_BUSY' ? 'busy' : 'worker-lost', demand.unwrittenCount);
      this.#giveUp(fetch, demand);
    } else {
      this.#looks.set(fetch, this.#context.now() + this.#spacingMs());
    }
  }

  #onLooked(fetch: Fetch, demand: Demand, set: SlotSet, indexes: Int32Array, pinLimit: number): void {
    const { pinnedCount } = set;
    const pinned = new Int32Array(pinnedCount);
    const rest = new Int32Array(set.count - pinnedCount);
    let pinnedAt = 0;
    let restAt = 0;
    for (let i = 0; i < set.count; i++) {
      const position = demand.positions?.[i] ?? i;
      if (set.statuses[i] === PositionStatus.Pinned) pinned[pinnedAt++] = position;
      else rest[restAt++] = position;
    }
    demand.positions = rest;
    demand.isLimited = rest.length > 0 && pinnedCount === pinLimit;
    if (pinnedCount > 0) this.#write(fetch, demand, set, pinned, indexes, pinLimit);
    else this.#release(set, pinLimit);
    if (rest.length === 0) {
      this.#waits.delete(fetch);
      this.#waitingCount -= 1;
    } else if (!demand.isLimited) {
      // (A limited one looks again when the write that has the pins has ended.)
      this.#wait(fetch, demand);
    }
  }

  #wait(fetch: Fetch, demand: Demand): void {
    if (demand.isLast) {
      if (demand.isDirty) this.#look(fetch, demand);
      else this.#giveUp(fetch, demand);
    } else if (demand.isDirty) {
      this.#lookSoon(fetch, this.#context.now());
    } else {
      this.#idle.add(fetch);
    }
  }

  #write(
    fetch: Fetch,
    demand: Demand,
    set: SlotSet,
    pinned: Int32Array,
    indexes: Int32Array,
    pinLimit: number,
  ): void {
    const { peer } = fetch;
    this.#writes.write(fetch, { peer, indexes, resolved: set }, pinned.length, (failure) => {
      this.#release(set, pinLimit);
      if (!fetch.isClosed) this.#onWritten(fetch, demand, pinned, failure);
      this.#pumpPinQueue();
    });
  }

  #onWritten(fetch: Fetch, demand: Demand, pinned: Int32Array, failure: Failure | undefined): void {
    const { written } = demand;
    demand.unwrittenCount -= pinned.length;
    if (written) for (const position of pinned) written[position >> 3] |= 1 << (position & 7);
    if (failure !== undefined) {
      this.#onResult(fetch, 'failed');
    } else if (demand.unwrittenCount === 0) {
      this.#onResult(fetch, 'all');
    } else if (demand.isOver) {
      this.#conclude(fetch, demand);
    } else if (demand.isLimited) {
      demand.isLimited = false;
      this.#look(fetch, demand);
    }
  }

  /** No more blocks are waited for. */
  #giveUp(fetch: Fetch, demand: Demand): void {
    if (demand.written === undefined) {
      this.#onResult(fetch, 'failed');
      return;
    }
    this.forget(fetch);
    demand.isOver = true;
    this.#conclude(fetch, demand);
  }

  /** The result of one that was given up, once nothing of it is under way. */
  #conclude(fetch: Fetch, { written }: Demand): void {
    if (fetch.isClosed || fetch.writes.size > 0 || this.#matching.has(fetch)) return;
    this.#onResult(fetch, written ?? 'failed');
  }

  #isPartial(): boolean {
    return this.#context.remote()?.features.has('partial_fetch') === true;
  }

  #lookSoon(fetch: Fetch, nowMs: number): void {
    const { demand } = fetch;
    if (demand === undefined) return;
    this.#idle.delete(fetch);
    const dueMs = demand.lastLookMs + this.#spacingMs();
    if (dueMs <= nowMs) this.#look(fetch, demand);
    else this.#looks.set(fetch, dueMs);
  }

  #spacingMs(): number {
    return Math.max(LOOK_SPACING_MS, this.#waitingCount * LOOK_SPACING_PER_DEMAND_MS);
  }

  #isGivenUp({ message, receivedMs }: Fetch): boolean {
    return message.ttlMs !== undefined && this.#context.now() > receivedMs + message.ttlMs;
  }

  #release(set: SlotSet, pinLimit: number): void {
    this.#pinCount -= pinLimit;
    this.#context.shards.release(set);
  }

  #pumpPinQueue(): void {
    const waiting = this.#pinQueue;
    this.#pinQueue = [];
    for (const fetch of waiting) {
      const { demand } = fetch;
      if (!fetch.isClosed && demand !== undefined && !demand.isOver) this.#look(fetch, demand);
    }
  }
}

/** Blocks of it have still to be found. */
function isWaiting({ isClosed, demand }: Fetch): boolean {
  return !isClosed && demand !== undefined && !demand.isOver && demand.positions?.length !== 0;
}
