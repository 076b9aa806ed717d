// One load: reserve slots, fetch what is missing, publish, join what others write, and give one result.

import { PositionStatus } from '../../shared/operations.js';
import type { KeySpan, SlotSet } from '../shards/shard-client.js';
import type { Joins, LoadOptions, LoadResult, MissReason, Quarantine, RoleContext } from './roles.js';

/** A pull slower than this is taken for dead: added to the load deadline by size. Bytes per millisecond (50 MB/s). */
const SLOWEST_BYTES_PER_MS = 50_000;

export interface LoadHost {
  readonly context: RoleContext;
  readonly joins: Joins;
  readonly quarantine: Quarantine;
}

/** How a load leaves its id. */
export interface LoadOutcome {
  /** Undefined when it never fetched. */
  readonly round: number | undefined;
}

export interface LoadCalls {
  /** Sends the fetch; returns its round. */
  fetch(keys: Uint8Array, indexes: Int32Array): number;
  /** Every key is here, joined or without a slot: the round is not needed. */
  nothingToFetch(): void;
  /** Sends abort_fetch. */
  abort(round: number): void;
  result(result: LoadResult): void;
  /** The last call: nothing of the load is open any more at the peer. */
  ended(outcome: LoadOutcome): void;
}

type Phase =
  | { readonly name: 'reserving' }
  | { readonly name: 'preparing'; readonly set: SlotSet }
  | { readonly name: 'fetching'; readonly set: SlotSet; readonly round: number; readonly deadlineMs: number }
  | { readonly name: 'draining'; readonly set: SlotSet; readonly round: number; readonly deadlineMs: number }
  /** The write is over; bytes are published or slots given back. */
  | { readonly name: 'settling'; readonly round: number | undefined }
  | { readonly name: 'over' };

export class Load {
  readonly #host: LoadHost;
  readonly #kvRequestId: string;
  readonly #keys: KeySpan;
  readonly #options: LoadOptions;
  readonly #calls: LoadCalls;
  readonly #startedMs: number;
  #phase: Phase = { name: 'reserving' };
  #hasResult = false;
  #isCancelled = false;
  #deadlineMs: number;
  /** How long the transfer may take, by its size. */
  readonly budgetMs: number;

  constructor(host: LoadHost, kvRequestId: string, keys: KeySpan, options: LoadOptions, calls: LoadCalls) {
    this.#host = host;
    this.#kvRequestId = kvRequestId;
    this.#keys = keys;
    this.#options = options;
    this.#calls = calls;
    this.#startedMs = host.context.now();
    this.budgetMs =
      host.context.times.loadMs + (keys.count * host.context.shards.blockBytes) / SLOWEST_BYTES_PER_MS;
    this.#deadlineMs = this.#startedMs + this.budgetMs;
  }

  start(): void {
    const { shards } = this.#host.context;
    shards.reserve(this.#keys, (failure, set) => {
      if (failure || !set) {
        this.#finishWithout(failure?.code === 'KVPEER_WORKER_LOST' ? 'worker-lost' : 'busy');
        return;
      }
      if (this.#isCancelled) {
        this.#giveBack(set, undefined);
        return;
      }
      if (set.reservedCount === 0) {
        this.#phase = { name: 'settling', round: undefined };
        this.#calls.nothingToFetch();
        this.#collect(set, 0);
        return;
      }
      this.#phase = { name: 'preparing', set };
      if (this.#options.beforeFetch) {
        this.#options.beforeFetch(set, () => {
          this.#fetch(set);
        });
      } else {
        this.#fetch(set);
      }
    });
  }

  #fetch(set: SlotSet): void {
    if (this.#isCancelled) {
      this.#giveBack(set, undefined);
      return;
    }
    const { context } = this.#host;
    const { keys, indexes } = reservedOf(this.#keys, set, context.shards.keyBytes);
    // Time spent queueing is not charged to the transfer.
    this.#deadlineMs = context.now() + this.budgetMs;
    const round = this.#calls.fetch(keys, indexes);
    this.#phase = { name: 'fetching', set, round, deadlineMs: this.#deadlineMs };
    context.wakeAt(this.#deadlineMs);
  }

  onTransferDone(isSuccess: boolean): void {
    const phase = this.#phase;
    if (phase.name !== 'fetching' && phase.name !== 'draining') return;
    const { context } = this.#host;
    // Without a data plane nobody wrote anything, whatever the peer says.
    const isComplete = isSuccess && context.remote()?.dataPeer !== undefined;
    if (!isComplete) {
      if (!this.#hasResult) context.counters.miss('load-failed', phase.set.reservedCount);
      this.#giveBack(phase.set, phase.round, 'load-failed');
      return;
    }
    const pulledCount = phase.set.reservedCount;
    const isWanted = !this.#hasResult;
    this.#phase = { name: 'settling', round: phase.round };
    context.counters.bytesPulled(pulledCount * context.shards.blockBytes);
    context.shards.publish(phase.set, { keepPins: isWanted }, (failure) => {
      if (failure) {
        // The worker died and its successor has dropped the blocks that were being written.
        context.counters.miss('worker-lost', pulledCount);
        this.#resultFromPool('worker-lost');
        this.#end(phase.round);
      } else if (this.#hasResult) {
        if (isWanted) context.shards.release(phase.set);
        this.#end(phase.round);
      } else {
        this.#collect(phase.set, pulledCount);
      }
    });
  }

  /** Nothing of the round can land any more. */
  onAbortAck(): void {
    const phase = this.#phase;
    if (phase.name !== 'fetching' && phase.name !== 'draining') return;
    this.#giveBack(phase.set, phase.round, 'load-failed');
  }

  /** The caller does not want it any more: its result is what is here, the write drains. */
  cancel(): void {
    this.#isCancelled = true;
    if (this.#phase.name === 'fetching') this.#drain(this.#phase, 'load-failed');
    else this.#resultFromPool('load-failed');
  }

  tick(nowMs: number): void {
    const phase = this.#phase;
    if (phase.name === 'fetching') {
      if (nowMs >= phase.deadlineMs) {
        this.#host.context.counters.miss('load-deadline', phase.set.reservedCount);
        this.#drain(phase, 'load-deadline');
      } else {
        this.#host.context.wakeAt(phase.deadlineMs);
      }
    } else if (phase.name === 'draining') {
      if (nowMs >= phase.deadlineMs) this.#toQuarantine(phase.set, phase.round);
      else this.#host.context.wakeAt(phase.deadlineMs);
    }
  }

  onSessionEnd(): void {
    const phase = this.#phase;
    this.#isCancelled = true;
    if (phase.name === 'fetching' || phase.name === 'draining') {
      if (phase.name === 'fetching') this.#host.context.counters.miss('peer-down', phase.set.reservedCount);
      this.#toQuarantine(phase.set, phase.round);
    }
    this.#resultFromPool('peer-down');
  }

  #drain(phase: { readonly set: SlotSet; readonly round: number }, reason: MissReason): void {
    const { context } = this.#host;
    const deadlineMs = context.now() + context.times.abortAckMs;
    this.#phase = { name: 'draining', set: phase.set, round: phase.round, deadlineMs };
    context.wakeAt(deadlineMs);
    this.#calls.abort(phase.round);
    this.#resultFromPool(reason);
  }

  #toQuarantine(set: SlotSet, round: number): void {
    const { context, quarantine } = this.#host;
    this.#phase = { name: 'settling', round };
    // A fetch that never left, or a peer without a data plane, cannot bring a write.
    const canLand = context.hasSent() && context.remote()?.dataPeer !== undefined;
    if (canLand) {
      const writer = context.writer() ?? {
        address: context.address,
        incarnation: undefined,
        agentName: '',
        isOnThisHost: true,
        process: undefined,
      };
      quarantine.add(set, writer, { kvRequestId: this.#kvRequestId, round });
      this.#end(round);
    } else {
      this.#giveBack(set, round);
    }
  }

  /** Reserved slots become FREE; the result is what is in the pool all the same. */
  #giveBack(set: SlotSet, round: number | undefined, reason: MissReason = 'load-failed'): void {
    this.#phase = { name: 'settling', round };
    this.#host.context.shards.abandon(set, { quarantine: false }, () => {
      this.#resultFromPool(reason);
      this.#end(round);
    });
  }

  #finishWithout(reason: MissReason): void {
    this.#phase = { name: 'settling', round: undefined };
    this.#host.context.counters.miss(reason, this.#keys.count);
    this.#calls.nothingToFetch();
    this.#deliver({
      slots: new Int32Array(this.#keys.count).fill(-1),
      pins: [],
      loadedCount: 0,
      pulledCount: 0,
      reason,
    });
    this.#end(undefined);
  }

  /** The set's blocks are READY and pinned; blocks that others write are waited for. */
  #collect(set: SlotSet, pulledCount: number): void {
    const { context, joins } = this.#host;
    const round = this.#phase.name === 'settling' ? this.#phase.round : undefined;
    const slots = new Int32Array(set.count).fill(-1);
    let loadedCount = take(set, slots, undefined);
    const fullCount = countStatus(set, PositionStatus.Full);
    if (fullCount > 0) context.counters.miss('no-slot', fullCount);
    if (set.pendingCount === 0) {
      const reason = fullCount > 0 ? 'no-slot' : undefined;
      this.#deliver({ slots, pins: [set], loadedCount, pulledCount, ...(reason ? { reason } : {}) });
      this.#end(round);
      return;
    }
    const pending = pendingOf(this.#keys, set, context.shards.keyBytes);
    joins.waitSettled(set, this.#deadlineMs, () => {
      context.shards.match(pending.keys, {}, (_failure, joined) => {
        if (joined) loadedCount += take(joined, slots, pending.positions);
        const missingCount = pending.positions.length - (joined?.pinnedCount ?? 0);
        if (missingCount > 0) context.counters.miss('joined-failed', missingCount);
        const pins = joined ? [set, joined] : [set];
        this.#deliver({
          slots,
          pins,
          loadedCount,
          pulledCount,
          ...(missingCount > 0 ? { reason: 'joined-failed' } : {}),
        });
        this.#end(round);
      });
    });
  }

  /** What the pool holds of the keys now, pinned: a load that failed still gives what is here. */
  #resultFromPool(reason: MissReason): void {
    if (this.#hasResult) return;
    this.#hasResult = true;
    this.#host.context.shards.match(this.#keys, {}, (_failure, set) => {
      const slots = new Int32Array(this.#keys.count).fill(-1);
      const loadedCount = set ? take(set, slots, undefined) : 0;
      this.#calls.result({ slots, pins: set ? [set] : [], loadedCount, pulledCount: 0, reason });
    });
  }

  #deliver(result: LoadResult): void {
    if (this.#hasResult) {
      for (const set of result.pins) this.#host.context.shards.release(set);
      return;
    }
    this.#hasResult = true;
    this.#host.context.counters.loadSeconds((this.#host.context.now() - this.#startedMs) / 1000);
    this.#calls.result(result);
  }

  #end(round: number | undefined): void {
    if (this.#phase.name === 'over') return;
    this.#phase = { name: 'over' };
    this.#calls.ended({ round });
  }
}

/** The keys whose positions are Reserved, packed, and their slots. */
function reservedOf(
  span: KeySpan,
  set: SlotSet,
  keyBytes: number,
): { keys: Uint8Array; indexes: Int32Array } {
  const { keys, positions } = subsetOf(span, set, keyBytes, PositionStatus.Reserved, set.reservedCount);
  const { slots } = set;
  return { keys, indexes: positions.map((position) => slots[position]) };
}

function pendingOf(span: KeySpan, set: SlotSet, keyBytes: number): { keys: KeySpan; positions: Int32Array } {
  const { keys, positions } = subsetOf(span, set, keyBytes, PositionStatus.Pending, set.pendingCount);
  return { keys: { bytes: keys, first: 0, stride: keyBytes, count: positions.length }, positions };
}

function subsetOf(
  span: KeySpan,
  set: SlotSet,
  keyBytes: number,
  status: number,
  count: number,
): { keys: Uint8Array; positions: Int32Array } {
  const { statuses } = set;
  const keys = new Uint8Array(count * keyBytes);
  const positions = new Int32Array(count);
  let at = 0;
  for (let i = 0; i < set.count && at < count; i++) {
    if (statuses[i] !== status) continue;
    const from = span.first + i * span.stride;
    keys.set(span.bytes.subarray(from, from + keyBytes), at * keyBytes);
    positions[at++] = i;
  }
  return { keys, positions };
}

/** Copies the slots of pinned positions; returns how many. */
function take(set: SlotSet, slots: Int32Array, positions: Int32Array | undefined): number {
  const { statuses, slots: found } = set;
  let count = 0;
  for (let i = 0; i < set.count; i++) {
    if (statuses[i] !== PositionStatus.Pinned) continue;
    slots[positions ? positions[i] : i] = found[i];
    count++;
  }
  return count;
}

function countStatus(set: SlotSet, status: number): number {
  const { statuses } = set;
  let count = 0;
  for (let i = 0; i < set.count; i++) if (statuses[i] === status) count++;
  return count;
}
