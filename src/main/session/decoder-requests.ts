// Blocks stored for remote decoders: pinned for their id, whichever peer comes for them, until fetched or reaped.
//
//     open() ---> open ---- finish() ---> finished ---- unclaimedStoreMs ---> reaped ---- rememberedMs ---> unknown
//                  |                        |  a completed fetch lets the pins go, the state stays
//                  +---- pins not claimed for unclaimedStoreMs ---------------> reaped
//
// They belong to the id, not to a session: neither an empty fetch nor the death of a peer touches them.

import type { ShardClient, SlotSet } from '../shards/shard-client.js';
import { Deadlines } from './deadlines.js';
import type { DecoderRequests, RoleLog, SessionTimes } from './roles.js';

interface Entry {
  readonly kvRequestId: string;
  isFinished: boolean;
  sets: SlotSet[];
}

export interface DecoderRequestsOptions {
  readonly shards: Pick<ShardClient, 'release'>;
  readonly times: Pick<SessionTimes, 'unclaimedStoreMs' | 'rememberedMs'>;
  readonly log: RoleLog;
  now(): number;
  wakeAt(timeMs: number): void;
}

/** Reaped ids that are remembered at most; beyond it the oldest is forgotten and its late fetch waits its time. */
const MAX_REMEMBERED_IDS = 65_536;

/** See the contract in roles.ts. */
export class NodeDecoderRequests implements DecoderRequests {
  onStored: (kvRequestId: string) => void = () => undefined;
  onEnded: (kvRequestId: string) => void = () => undefined;
  readonly #options: DecoderRequestsOptions;
  readonly #entries = new Map<string, Entry>();
  /** Of entries that are finished or hold pins. A request that has stored nothing yet may stay open for long. */
  readonly #unclaimed: Deadlines<Entry>;
  readonly #reaped: Deadlines<string>;
  #pinnedCount = 0;

  constructor(options: DecoderRequestsOptions) {
    this.#options = options;
    const wakeAt = (timeMs: number): void => {
      options.wakeAt(timeMs);
    };
    this.#unclaimed = new Deadlines(wakeAt);
    this.#reaped = new Deadlines(wakeAt);
  }

  get pinnedCount(): number {
    return this.#pinnedCount;
  }

  state(kvRequestId: string): 'open' | 'finished' | 'reaped' | 'unknown' {
    const entry = this.#entries.get(kvRequestId);
    if (entry !== undefined) return entry.isFinished ? 'finished' : 'open';
    return this.#reaped.has(kvRequestId) ? 'reaped' : 'unknown';
  }

  open(kvRequestId: string): void {
    this.#reaped.delete(kvRequestId);
    const known = this.#entries.get(kvRequestId);
    if (known === undefined) {
      this.#entries.set(kvRequestId, { kvRequestId, isFinished: false, sets: [] });
    } else {
      known.isFinished = false;
      if (known.sets.length === 0) this.#unclaimed.delete(known);
    }
  }

  addStored(kvRequestId: string, set: SlotSet): void {
    const entry = this.#entries.get(kvRequestId);
    if (entry === undefined) {
      // Reaped meanwhile: nobody will come for these blocks, they stay in the pool without pins.
      this.#options.shards.release(set);
      return;
    }
    entry.sets.push(set);
    this.#pinnedCount += set.pinnedCount;
    this.#startClock(entry);
    this.onStored(kvRequestId);
  }

  finish(kvRequestId: string): void {
    const entry = this.#entries.get(kvRequestId);
    if (entry === undefined || entry.isFinished) return;
    entry.isFinished = true;
    this.#startClock(entry);
    this.onEnded(kvRequestId);
  }

  onFetched(kvRequestId: string): void {
    const entry = this.#entries.get(kvRequestId);
    if (entry === undefined) return;
    this.#release(entry);
    if (!entry.isFinished) this.#unclaimed.delete(entry);
  }

  tick(nowMs: number): void {
    this.#unclaimed.expire(nowMs, (entry) => {
      this.#reap(entry, nowMs);
    });
    this.#reaped.expire(nowMs, () => undefined);
    const nextMs = Math.min(this.#unclaimed.nextMs, this.#reaped.nextMs);
    if (nextMs !== Infinity) this.#options.wakeAt(nextMs);
  }

  #startClock(entry: Entry): void {
    this.#unclaimed.set(entry, this.#options.now() + this.#options.times.unclaimedStoreMs);
  }

  #reap(entry: Entry, nowMs: number): void {
    const unclaimedCount = this.#release(entry);
    this.#entries.delete(entry.kvRequestId);
    this.#reaped.set(entry.kvRequestId, nowMs + this.#options.times.rememberedMs);
    if (this.#reaped.size > MAX_REMEMBERED_IDS) this.#reaped.shift();
    if (unclaimedCount > 0) {
      this.#options.log.info(
        { kvRequestId: entry.kvRequestId, blockCount: unclaimedCount },
        'blocks kept for a remote decoder were not fetched in time; their pins went',
      );
    }
    this.onEnded(entry.kvRequestId);
  }

  #release(entry: Entry): number {
    let count = 0;
    for (const set of entry.sets) {
      count += set.pinnedCount;
      this.#options.shards.release(set);
    }
    entry.sets = [];
    this.#pinnedCount -= count;
    return count;
  }
}
