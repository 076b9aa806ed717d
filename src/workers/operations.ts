// What a worker does for each operation of its ring: calls into the index, its shard, the blocks and the mover.

import type { ControlHandle, Native, PoolHandle } from '../../native/index.js';
import { unpackMatch } from '../../native/index.js';
import { Counter, type WorkerCounters } from '../shared/counters.js';
import type { ExtentMemory } from '../shared/extent.js';
import type { Layout } from '../shared/layout.js';
import { extentOffset } from '../shared/layout.js';
import {
  ADD_PEER_SCRATCH,
  EXTENT_UNIT_BYTES,
  ExtentFlag,
  ExtentWord,
  NO_EXTENT,
  Opcode,
  Outcome,
  RebuildMode,
} from '../shared/operations.js';
import type { RingProducer } from '../shared/ring.js';
import { ByteJobs } from './byte-jobs.js';
import type { Mover, MoverEvents, ServeStatus } from './mover.js';
import type { ShardSlots } from './slots.js';

/** The native calls an operation makes. */
export type OperationsNative = Pick<
  Native,
  | 'match'
  | 'release'
  | 'resolve'
  | 'copyIn'
  | 'fillFromKey'
  | 'verifyFromKey'
  | 'poison'
  | 'checksum'
  | 'verifyChecksum'
>;

export interface OperationsParts {
  readonly native: OperationsNative;
  readonly control: ControlHandle;
  readonly pool: PoolHandle;
  readonly layout: Layout;
  readonly memory: ExtentMemory;
  readonly slots: ShardSlots;
  readonly counters: WorkerCounters;
  readonly completions: RingProducer;
  readonly shard: number;
  /** Makes what was pushed visible and wakes main when it sleeps. */
  readonly showCompletions: () => void;
  readonly log: (level: 'warn' | 'error', text: string) => void;
}

/** One submission, as it lies in the ring. */
export interface Submission {
  readonly opcode: number;
  readonly opNumber: number;
  readonly extent: number;
  readonly arg0: number;
  readonly arg1: number;
  readonly arg2: number;
}

const OUTCOME_OF_SERVE: Readonly<Record<ServeStatus, Outcome>> = {
  done: Outcome.Ok,
  failed: Outcome.WriteFailed,
  cancelled: Outcome.Cancelled,
  stopped: Outcome.Stopped,
};

/**
 * Runs operations; each ends with one completion, now or later (serves, removals, hard stops and block work). What an
 * operation throws is its own outcome Fault and goes to the log; the worker goes on.
 */
export class ShardOperations implements MoverEvents {
  /** Set once the send agent exists; undefined in a worker that moves no data. */
  mover: Mover | undefined;
  readonly jobs: ByteJobs;
  private readonly parts: OperationsParts;
  /** Bit of this worker in RECORDED and OWNERS_LEFT. */
  private readonly bit: number;
  /** Extents of serves that are with the mover. */
  private readonly serves = new Map<number, number>();
  private readonly removals = new Map<number, number[]>();
  private readonly hardStops = new Map<number, number[]>();

  constructor(parts: OperationsParts) {
    this.parts = parts;
    this.bit = 1 << parts.shard;
    this.jobs = new ByteJobs(parts, (opNumber, opcode, extent, outcome, result) => {
      this.finish(opcode, opNumber, extent, outcome, result, 0, 0);
    });
  }

  /** @param at index of the record in the control mapping's words */
  run(words: Int32Array, at: number): void {
    const unit = words[at + 2];
    const submission: Submission = {
      opcode: words[at],
      opNumber: words[at + 1],
      extent: unit === NO_EXTENT ? NO_EXTENT : extentOffset(unit),
      arg0: words[at + 3],
      arg1: words[at + 4],
      arg2: words[at + 5],
    };
    try {
      this.dispatch(submission);
    } catch (error) {
      this.fault(submission, error);
    }
  }

  /** The operation met something unexpected: it ends with Fault. */
  fault(submission: Pick<Submission, 'opcode' | 'opNumber' | 'extent'>, error: unknown): void {
    this.parts.counters.add(Counter.Faults, 1);
    const text = error instanceof Error ? (error.stack ?? error.message) : String(error);
    this.parts.log('error', `operation ${submission.opcode} failed on shard ${this.parts.shard}: ${text}`);
    this.finish(submission.opcode, submission.opNumber, submission.extent, Outcome.Fault, 0, 0, 0);
  }

  private dispatch(op: Submission): void {
    const { slots, memory, native, control } = this.parts;
    switch (op.opcode) {
      case Opcode.Match:
        this.match(op);
        return;
      case Opcode.Release:
        native.release(control, op.extent);
        break;
      case Opcode.Reserve:
        // Pins what is READY in one native call, which this thread's death cannot tear; then inserts the rest.
        native.match(control, op.extent, 0, -1, this.parts.shard, this.parts.shard);
        slots.reserve(op.extent, op.arg0);
        break;
      case Opcode.Publish:
        this.publish(op);
        break;
      case Opcode.Abandon:
        slots.abandon(
          op.extent,
          (memory.header(op.extent, ExtentWord.Flags) & ExtentFlag.ToQuarantine) !== 0,
        );
        break;
      case Opcode.Unquarantine:
        slots.unquarantine(op.extent);
        break;
      case Opcode.Evict:
        slots.evictKeys(op.extent);
        break;
      case Opcode.Rebuild:
        slots.rebuild(
          op.extent,
          op.arg0 === RebuildMode.Adopted ? RebuildMode.Adopted : RebuildMode.Replaced,
        );
        break;
      case Opcode.Serve:
        this.serve(op);
        return;
      case Opcode.CancelServe:
        this.mover?.cancelUnposted(op.arg0);
        return;
      case Opcode.HardStop:
        this.later(this.hardStops, op, () => {
          if (this.mover === undefined) this.onHardStopped(op.arg0);
          else this.mover.hardStop(op.arg0);
        });
        return;
      case Opcode.AddPeer:
        this.addPeer(op);
        return;
      case Opcode.RemovePeer:
        this.later(this.removals, op, () => {
          if ((this.mover?.removePeer(op.arg0) ?? 'removed') === 'removed') this.onPeerRemoved(op.arg0);
        });
        return;
      case Opcode.CopyIn:
      case Opcode.Fill:
      case Opcode.Poison:
      case Opcode.Verify:
      case Opcode.Checksum:
      case Opcode.VerifyChecksum:
        this.jobs.add(op);
        return;
      default:
        throw new Error(`unknown opcode ${op.opcode}`);
    }
    this.finish(op.opcode, op.opNumber, op.extent, Outcome.Ok, 0, 0, 0);
  }

  private publish({ extent }: Submission): void {
    const { slots, memory } = this.parts;
    const flags = memory.header(extent, ExtentWord.Flags);
    slots.publish(extent, (flags & ExtentFlag.KeepPins) !== 0, (flags & ExtentFlag.DropUnwritten) !== 0);
  }

  /** arg0 = first position, arg1 = positions (-1: all). */
  private match(op: Submission): void {
    const { native, control, shard, counters, memory } = this.parts;
    const packed = native.match(control, op.extent, op.arg0, op.arg1, shard, -1);
    if (packed < 0) {
      const outcome = packed === -Outcome.BadDestination ? Outcome.BadDestination : Outcome.Fault;
      this.finish(op.opcode, op.opNumber, op.extent, outcome, 0, 0, 0);
      return;
    }
    const { hitCount, pendingCount, leadingCount } = unpackMatch(packed);
    const keyCount = op.arg1 < 0 ? memory.header(op.extent, ExtentWord.Count) - op.arg0 : op.arg1;
    counters.add(Counter.MatchedKeys, keyCount);
    counters.add(Counter.HitKeys, hitCount);
    counters.add(Counter.PendingKeys, pendingCount);
    this.finish(op.opcode, op.opNumber, op.extent, Outcome.Ok, hitCount, pendingCount, leadingCount);
  }

  private serve(op: Submission): void {
    const { native, control, memory } = this.parts;
    if (this.mover === undefined) {
      this.finish(op.opcode, op.opNumber, op.extent, Outcome.NoDataPlane, 0, 0, 0);
      return;
    }
    const flags = memory.header(op.extent, ExtentWord.Flags);
    if ((flags & ExtentFlag.ByLease) !== 0) {
      const resolved = native.resolve(control, op.extent);
      // (What is not leased is a miss by its status: the mover leaves it out.)
      const isPartial = resolved === Outcome.NotInLease && (flags & ExtentFlag.Partial) !== 0;
      if (resolved !== Outcome.Ok && !isPartial) {
        const isKnown = resolved === Outcome.NotInLease || resolved === Outcome.BadDestination;
        const outcome = isKnown ? resolved : Outcome.Fault;
        this.finish(op.opcode, op.opNumber, op.extent, outcome, 0, 0, 0);
        return;
      }
    }
    this.serves.set(op.opNumber, op.extent);
    const answer = this.mover.serve({
      opNumber: op.opNumber,
      peerId: op.arg0,
      slotsOffset: op.extent + memory.header(op.extent, ExtentWord.SlotsOffset),
      indexesOffset: op.extent + memory.header(op.extent, ExtentWord.IndexesOffset),
      statusesOffset: op.extent + memory.header(op.extent, ExtentWord.StatusesOffset),
      count: memory.header(op.extent, ExtentWord.Count),
    });
    if (answer === 'accepted') return;
    this.serves.delete(op.opNumber);
    const outcome = answer === 'unknownPeer' ? Outcome.UnknownPeer : Outcome.BadDestination;
    this.finish(op.opcode, op.opNumber, op.extent, outcome, 0, 0, 0);
  }

  /** Key area: the base address as a float64, then the metadata. */
  private addPeer(op: Submission): void {
    const { memory } = this.parts;
    if (this.mover === undefined) {
      this.finish(op.opcode, op.opNumber, op.extent, Outcome.NoDataPlane, 0, 0, 0);
      return;
    }
    const at = memory.keysAt(op.extent);
    const baseAddr = new Float64Array(memory.bytes.buffer, at, 1)[0];
    const blobBytes = memory.header(op.extent, ExtentWord.PeerNumBlocks);
    // A copy outside of shared memory: what the loader sees must not change under it.
    const blob = memory.bytes.slice(at + 8, at + 8 + blobBytes);
    const answer = this.mover.addPeer(op.arg0, blob, baseAddr, op.arg1, {
      scratch: (op.arg2 & ADD_PEER_SCRATCH) !== 0,
    });
    if (answer.status === 'refused') {
      this.parts.log('warn', `the metadata of peer ${op.arg0} was refused: ${answer.reason}`);
    } else {
      this.parts.counters.add(Counter.PeersLoaded, 1);
    }
    const outcome = answer.status === 'added' ? Outcome.Ok : Outcome.BadMetadata;
    this.finish(op.opcode, op.opNumber, op.extent, outcome, 0, 0, 0);
  }

  private later(waiting: Map<number, number[]>, op: Submission, start: () => void): void {
    const known = waiting.get(op.arg0);
    if (known === undefined) waiting.set(op.arg0, [op.opNumber]);
    else known.push(op.opNumber);
    try {
      start();
    } catch (error) {
      const left = waiting.get(op.arg0)?.filter((opNumber) => opNumber !== op.opNumber) ?? [];
      if (left.length === 0) waiting.delete(op.arg0);
      else waiting.set(op.arg0, left);
      throw error;
    }
  }

  // ---- MoverEvents

  onServeEnd(opNumber: number, status: ServeStatus, bytesWritten: number, cutRequestCount: number): void {
    const { counters, layout } = this.parts;
    const extent = this.serves.get(opNumber) ?? NO_EXTENT;
    this.serves.delete(opNumber);
    const blockCount = Math.floor(bytesWritten / layout.blockBytes);
    counters.add(Counter.BlocksServed, blockCount);
    counters.add(Counter.BytesServed, bytesWritten);
    if (status === 'failed') counters.add(Counter.WritesFailed, 1);
    this.finish(Opcode.Serve, opNumber, extent, OUTCOME_OF_SERVE[status], blockCount, cutRequestCount, 0);
    // At once: the peer waits for it, and what the mover has left to do after a copy is slow (cold caches).
    this.parts.showCompletions();
  }

  onHardStopped(peerId: number): void {
    for (const opNumber of this.hardStops.get(peerId) ?? []) {
      this.parts.counters.add(Counter.HardStops, 1);
      this.finish(Opcode.HardStop, opNumber, NO_EXTENT, Outcome.Ok, 0, 0, 0);
    }
    this.hardStops.delete(peerId);
  }

  onPeerRemoved(peerId: number): void {
    for (const opNumber of this.removals.get(peerId) ?? []) {
      this.finish(Opcode.RemovePeer, opNumber, NO_EXTENT, Outcome.Ok, 0, 0, 0);
    }
    this.removals.delete(peerId);
  }

  onTrouble(text: string): void {
    this.parts.log('warn', text);
  }

  /** This worker's part of the operation is done; the last part of all posts the completion. */
  private finish(
    opcode: number,
    opNumber: number,
    extent: number,
    outcome: Outcome,
    result0: number,
    result1: number,
    result2: number,
  ): void {
    const { memory, completions } = this.parts;
    let overall: number = outcome;
    if (extent !== NO_EXTENT) {
      const header = extent / 4;
      if (outcome !== Outcome.Ok) {
        Atomics.compareExchange(memory.words, header + ExtentWord.Outcome, Outcome.Ok, outcome);
      }
      const left = Atomics.and(memory.words, header + ExtentWord.OwnersLeft, ~this.bit) & ~this.bit;
      if (left !== 0) return;
      overall = Atomics.load(memory.words, header + ExtentWord.Outcome);
    }
    const unit = extent === NO_EXTENT ? NO_EXTENT : extent / EXTENT_UNIT_BYTES;
    if (!completions.push(opcode, opNumber, unit, overall, result0, result1, result2, 0)) {
      // Main admits no more operations than this ring has records.
      throw new Error('the completion ring is full');
    }
  }
}
