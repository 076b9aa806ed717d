// One load: reserve slots, fetch what is missing, publish, join what others write, and give one result.
//
//   reserving --> preparing --> fetching --> settling --> over       (see also the picture in consumer.ts)
//       |             |             |            ^
//       |             |             +-- draining-+
//       +-------------+---------------------------

import { countBits, positionsOf } from '../../shared/bitmap.js';
import { PositionStatus } from '../../shared/operations.js';
import type { TransferDoneMessage } from '../protocol/messages.js';
import type { Failure, KeySpan, SlotSet } from '../shards/shard-client.js';
import { pickKeys } from './key-subset.js';
import type { Joins, LoadOptions, LoadResult, MissReason, Quarantine, RoleContext } from './roles.js';
import { unknownWriter } from './writer-identity.js';

/** A pull slower than this is taken for dead: added to the load deadline by size. Bytes per millisecond (50 MB/s). */
const SLOWEST_BYTES_PER_MS = 50_000;

/** Bytes of one checksum in transfer_done. */
const CHECKSUM_BYTES = 8;

export interface LoadHost {
  readonly context: RoleContext;
  readonly joins: Joins;
  readonly quarantine: Quarantine;
  /** tick() shall be called at or soon after this time. */
  wakeAt(timeMs: number): void;
}

export interface LoadCalls {
  /** Sends the fetch; returns its round. */
  fetch(keys: Uint8Array, indexes: Int32Array): number;
  /** Takes the fetch back if it has not left this node: nobody can write then. */
  takeBack(): boolean;
  /** There will be no fetch: the round is not needed. */
  fetchesNothing(): void;
  /** Sends abort_fetch. */
  abort(round: number): void;
  result(result: LoadResult): void;
  /** The last call: nothing of the load is open any more. `round` is undefined when it never fetched. */
  ended(round: number | undefined): void;
}

interface Fetched {
  readonly set: SlotSet;
  readonly round: number;
}

type Phase =
  | { readonly name: 'reserving' }
  /** The caller's beforeFetch runs. */
  | { readonly name: 'preparing'; readonly set: SlotSet }
  | ({ readonly name: 'fetching' } & Fetched)
  /** abort_fetch was sent, the caller has its result, the write may still land. */
  | ({ readonly name: 'draining' } & Fetched)
  /** No write can land any more; blocks are published, waited for, or slots given back. */
  | { readonly name: 'settling' }
  | { readonly name: 'over' };

export class Load {
  readonly #host: LoadHost;
  readonly #kvRequestId: string;
  readonly #keys: KeySpan;
  readonly #options: LoadOptions;
  readonly #calls: LoadCalls;
  readonly #startedMs: number;
  #phase: Phase = { name: 'reserving' };
  /** The result was given, or is on its way. */
  #hasResult = false;
  #deadlineMs: number;
  /** How long the transfer may take, by its size. */
  readonly budgetMs: number;

  constructor(host: LoadHost, kvRequestId: string, keys: KeySpan, options: LoadOptions, calls: LoadCalls) {
    const { context } = host;
    this.#host = host;
    this.#kvRequestId = kvRequestId;
    this.#keys = keys;
    this.#options = options;
    this.#calls = calls;
    this.#startedMs = context.now();
    this.budgetMs = context.times.loadMs + (keys.count * context.shards.blockBytes) / SLOWEST_BYTES_PER_MS;
    this.#deadlineMs = this.#startedMs + this.budgetMs;
  }

  get isIfHeld(): boolean {
    return this.#options.ifHeld === true;
  }

  /** A fetch was sent and its end is waited for. */
  get isFetched(): boolean {
    return this.#phase.name === 'fetching' || this.#phase.name === 'draining';
  }

  /** When tick() has something to do; Infinity: never. */
  get deadlineMs(): number {
    return this.#phase.name === 'settling' || this.#phase.name === 'over' ? Infinity : this.#deadlineMs;
  }

  start(): void {
    this.#wait(this.#deadlineMs);
    this.#host.context.shards.reserve(this.#keys, (failure, set) => {
      this.#onReserved(failure, set);
    });
  }

  #onReserved(failure: Failure | undefined, set: SlotSet | undefined): void {
    if (failure || !set) {
      this.#phase = { name: 'settling' };
      this.#calls.fetchesNothing();
      const reason = failure?.code === 'KVPEER_WORKER_LOST' ? 'worker-lost' : 'busy';
      this.#host.context.counters.miss(reason, this.#keys.count);
      this.#resultFromPool(reason);
      this.#end(undefined);
    } else if (this.#hasResult) {
      this.#calls.fetchesNothing();
      this.#giveBack(set, undefined, 'cancelled');
    } else if (set.reservedCount === 0) {
      this.#phase = { name: 'settling' };
      this.#calls.fetchesNothing();
      this.#collect(set, 0, undefined);
    } else {
      this.#phase = { name: 'preparing', set };
      const proceed = (): void => {
        this.#fetch(set);
      };
      if (this.#options.beforeFetch) this.#options.beforeFetch(set, proceed);
      else proceed();
    }
  }

  #fetch(set: SlotSet): void {
    if (this.#phase.name !== 'preparing') return;
    if (this.#hasResult) {
      this.#calls.fetchesNothing();
      this.#giveBack(set, undefined, 'cancelled');
      return;
    }
    const { context } = this.#host;
    const { keyBytes } = context.shards;
    const positions = positionsWith(set, PositionStatus.Reserved, set.reservedCount);
    const { bytes } = pickKeys(this.#keys, positions, keyBytes);
    const { slots } = set;
    const round = this.#calls.fetch(
      bytes,
      positions.map((position) => slots[position]),
    );
    this.#phase = { name: 'fetching', set, round };
    this.#options.onFetch?.();
    // Time spent queueing for slots is not charged to the transfer.
    this.#wait(context.now() + this.budgetMs);
  }

  onTransferDone({ success, written, checksums }: TransferDoneMessage): void {
    const phase = this.#phase;
    if (phase.name !== 'fetching' && phase.name !== 'draining') return;
    // Without a data plane nobody wrote anything, whatever the peer says.
    const hasDataPlane = this.#host.context.remote()?.dataPeer !== undefined;
    if (success && hasDataPlane) this.#verify(phase, checksums);
    else if (written !== undefined && hasDataPlane && this.#mayBePartial)
      this.#onPartial(phase, written, checksums);
    else this.#onFailed(phase);
  }

  get #mayBePartial(): boolean {
    return this.isIfHeld || this.#host.context.remote()?.features.has('partial_fetch') === true;
  }

  /** What was written goes on as if it had been fetched alone; the slots of the rest, which nobody wrote to, are given up. */
  #onPartial(phase: Fetched, written: Uint8Array, checksums: Uint8Array | undefined): void {
    const { set } = phase;
    const { context } = this.#host;
    const fetched = positionsWith(set, PositionStatus.Reserved, set.reservedCount);
    const count = countBits(written, fetched.length);
    if (count === undefined) {
      this.#onFailed(phase);
      return;
    }
    const missing = positionsOf(written, fetched.length, false).map((at) => fetched[at]);
    if (!this.isIfHeld && !this.#hasResult) context.counters.miss('not-held', missing.length);
    context.shards.markUnwritten(set, missing);
    if (count > 0) this.#verify(phase, checksums);
    else this.#publish(phase);
  }

  /** Nothing of the round can land any more. */
  onAbortAck(): void {
    const phase = this.#phase;
    if (phase.name === 'fetching' || phase.name === 'draining') this.#onFailed(phase);
  }

  #onFailed({ set, round }: Fetched): void {
    if (!this.#hasResult) this.#host.context.counters.miss('load-failed', set.reservedCount);
    this.#giveBack(set, round, 'load-failed');
  }

  /** A damaged block becomes a miss and is counted; the others are published. */
  #verify(phase: Fetched, checksums: Uint8Array | undefined): void {
    const { context } = this.#host;
    const { set, round } = phase;
    if (
      checksums?.length !== set.reservedCount * CHECKSUM_BYTES ||
      context.remote()?.features.has('checksums') !== true
    ) {
      this.#publish(phase);
      return;
    }
    this.#phase = { name: 'settling' };
    context.shards.verifyChecksums(set, atReserved(set, checksums), (failure, { damagedCount }) => {
      if (failure) {
        this.#giveBack(set, round, failure.code === 'KVPEER_WORKER_LOST' ? 'worker-lost' : 'busy');
        return;
      }
      if (damagedCount > 0) {
        context.counters.miss('checksum', damagedCount);
        context.log.warn(
          { peer: context.address, blocks: damagedCount },
          'damaged blocks were pulled; they are misses',
        );
      }
      this.#publish(phase);
    });
  }

  #publish({ set, round }: Fetched): void {
    const { context } = this.#host;
    const pulledCount = set.reservedCount;
    const keepPins = !this.#hasResult;
    this.#phase = { name: 'settling' };
    context.counters.bytesPulled(pulledCount * context.shards.blockBytes);
    context.shards.publish(set, { keepPins }, (failure) => {
      if (failure) {
        context.counters.miss('worker-lost', pulledCount);
        this.#giveBack(set, round, 'worker-lost');
      } else if (!keepPins) {
        // publish() gave the set back.
        this.#end(round);
      } else if (this.#hasResult) {
        context.shards.release(set);
        this.#end(round);
      } else {
        this.#collect(set, pulledCount, round);
      }
    });
  }

  /** The caller does not want it any more: its result is what is here now, the write drains. */
  cancel(reason: MissReason): void {
    if (this.#phase.name === 'fetching') this.#drain(this.#phase, reason);
    else this.#resultFromPool(reason);
  }

  tick(nowMs: number): void {
    if (nowMs < this.deadlineMs) return;
    const { counters } = this.#host.context;
    switch (this.#phase.name) {
      case 'reserving':
      case 'preparing':
        if (!this.#hasResult) counters.miss('load-deadline', this.#keys.count);
        this.#resultFromPool('load-deadline');
        this.#deadlineMs = Infinity;
        return;
      case 'fetching':
        counters.miss('load-deadline', this.#phase.set.reservedCount);
        this.#drain(this.#phase, 'load-deadline');
        return;
      case 'draining':
        this.#toQuarantine(this.#phase);
        return;
      case 'settling':
      case 'over':
        return;
    }
  }

  /** What settles needs no peer: it goes on, and its result is what came. */
  onSessionEnd(): void {
    const phase = this.#phase;
    if (phase.name === 'settling' || phase.name === 'over') return;
    this.#resultFromPool('peer-down');
    if (phase.name !== 'fetching' && phase.name !== 'draining') return;
    if (phase.name === 'fetching') this.#host.context.counters.miss('peer-down', phase.set.reservedCount);
    this.#toQuarantine(phase);
  }

  #drain(fetched: Fetched, reason: MissReason): void {
    if (this.#calls.takeBack()) {
      this.#giveBack(fetched.set, fetched.round, reason);
      return;
    }
    const { context } = this.#host;
    this.#phase = { name: 'draining', set: fetched.set, round: fetched.round };
    this.#wait(context.now() + context.times.abortAckMs);
    this.#calls.abort(fetched.round);
    this.#resultFromPool(reason);
  }

  #toQuarantine({ set, round }: Fetched): void {
    const { context, quarantine } = this.#host;
    const remote = context.remote();
    // A fetch that never left, or a peer without a data plane, cannot bring a write. A peer that acknowledged us and
    // has not introduced itself can.
    const canLand = context.hasSent() && (remote === undefined || remote.dataPeer !== undefined);
    if (!canLand) {
      this.#giveBack(set, round, 'load-failed');
      return;
    }
    this.#phase = { name: 'settling' };
    const writer = context.writer() ?? unknownWriter(context.address);
    quarantine.add(set, writer, { session: context, kvRequestId: this.#kvRequestId, round });
    this.#end(round);
  }

  /** Reserved slots become FREE; the result is what is in the pool all the same. */
  #giveBack(set: SlotSet, round: number | undefined, reason: MissReason): void {
    this.#phase = { name: 'settling' };
    this.#host.context.shards.abandon(set, { quarantine: false }, () => {
      this.#resultFromPool(reason);
      this.#end(round);
    });
  }

  /** The set's blocks are READY and pinned; blocks that others write are waited for. */
  #collect(set: SlotSet, pulledCount: number, round: number | undefined): void {
    const { context, joins } = this.#host;
    const slots = new Int32Array(set.count).fill(-1);
    const loadedCount = takePinned(set, slots, undefined);
    const fullCount = positionsWith(set, PositionStatus.Full, set.count).length;
    if (fullCount > 0) context.counters.miss('no-slot', fullCount);
    const result: LoadResult = {
      slots,
      pins: [set],
      loadedCount,
      pulledCount,
      ...(fullCount > 0 ? { reason: 'no-slot' } : {}),
    };
    if (set.pendingCount === 0) {
      this.#deliver(result);
      this.#end(round);
      return;
    }
    const positions = positionsWith(set, PositionStatus.Pending, set.pendingCount);
    const pending = pickKeys(this.#keys, positions, context.shards.keyBytes);
    const deadlineMs = Math.max(this.#deadlineMs, context.now());
    joins.waitSettled(set, deadlineMs, () => {
      context.shards.match(pending, {}, (_failure, joined) => {
        const joinedCount = joined ? takePinned(joined, slots, positions) : 0;
        const missingCount = positions.length - joinedCount;
        if (missingCount > 0) context.counters.miss('joined-failed', missingCount);
        this.#deliver({
          ...result,
          ...(missingCount > 0 ? { reason: 'joined-failed' } : {}),
          pins: joined ? [set, joined] : [set],
          loadedCount: loadedCount + joinedCount,
        });
        this.#end(round);
      });
    });
  }

  /** What the pool holds of the keys now, pinned: a load that failed still gives what is here. */
  #resultFromPool(reason: MissReason): void {
    if (this.#hasResult) return;
    this.#hasResult = true;
    const { count } = this.#keys;
    this.#host.context.shards.match(this.#keys, {}, (_failure, set) => {
      const slots = new Int32Array(count).fill(-1);
      const loadedCount = set ? takePinned(set, slots, undefined) : 0;
      this.#calls.result({ slots, pins: set ? [set] : [], loadedCount, pulledCount: 0, reason });
    });
  }

  #deliver(result: LoadResult): void {
    const { context } = this.#host;
    if (this.#hasResult) {
      for (const set of result.pins) context.shards.release(set);
      return;
    }
    this.#hasResult = true;
    context.counters.loadSeconds((context.now() - this.#startedMs) / 1000);
    this.#calls.result(result);
  }

  #wait(deadlineMs: number): void {
    this.#deadlineMs = deadlineMs;
    this.#host.wakeAt(deadlineMs);
  }

  #end(round: number | undefined): void {
    this.#phase = { name: 'over' };
    this.#calls.ended(round);
  }
}

/** Checksums of the fetch's keys, each at the position of its key in the whole set. */
function atReserved(set: SlotSet, checksums: Uint8Array): Uint8Array {
  const { statuses } = set;
  const placed = new Uint8Array(set.count * CHECKSUM_BYTES);
  let from = 0;
  for (let i = 0; i < set.count; i++) {
    if (statuses[i] !== PositionStatus.Reserved) continue;
    placed.set(checksums.subarray(from, from + CHECKSUM_BYTES), i * CHECKSUM_BYTES);
    from += CHECKSUM_BYTES;
  }
  return placed;
}

/** Positions of a set that have the status; `maxCount` bounds how many there are. */
function positionsWith(set: SlotSet, status: number, maxCount: number): Int32Array {
  const { statuses } = set;
  const positions = new Int32Array(maxCount);
  let count = 0;
  for (let i = 0; i < set.count && count < maxCount; i++) if (statuses[i] === status) positions[count++] = i;
  return positions.subarray(0, count);
}

/** Copies the slots of pinned positions to where they belong; returns how many. */
function takePinned(set: SlotSet, slots: Int32Array, positions: Int32Array | undefined): number {
  const { statuses, slots: found } = set;
  let count = 0;
  for (let i = 0; i < set.count; i++) {
    if (statuses[i] !== PositionStatus.Pinned) continue;
    slots[positions ? positions[i] : i] = found[i];
    count++;
  }
  return count;
}
