// Matches: which worker makes one, or the main thread itself, and the set with the pins that comes of it.

import { unpackMatch } from '../../../native/index.js';
import { ExtentFlag, Opcode, Outcome, PositionStatus } from '../../shared/operations.js';
import type { Extents } from './extents.js';
import { failureOf } from './failures.js';
import type { MainShare } from './main-share.js';
import { type CLOSED, LOST_RESULT, type OperationsInFlight } from './operations-in-flight.js';
import type { Done, KeySpan, MatchOptions, SlotSet } from './shard-client.js';
import { type ExtentSet, ownSet } from './slot-set.js';
import type { SlotSets } from './slot-sets.js';

/** Lists above this are cut into ranges over several workers; below, the hop costs more than it brings. */
const SPLIT_KEYS = 8192;

export interface MatchesParts {
  readonly numBlocks: number;
  readonly inFlight: OperationsInFlight;
  readonly extents: Extents;
  readonly sets: SlotSets;
  readonly mainShare: MainShare;
  /** See ShardsClientOptions. */
  readonly matchHere: ((extent: number) => number) | undefined;
}

export class Matches {
  private readonly parts: MatchesParts;

  constructor(parts: MatchesParts) {
    this.parts = parts;
  }

  /** See ShardClient. */
  match(keys: KeySpan, options: MatchOptions, done: Done<SlotSet | undefined>): void {
    const within = (options.within ?? []).map(ownSet);
    for (const set of within) set.holdCount += 1;
    const finish: Done<SlotSet | undefined> = (failure, set) => {
      for (const held of within) this.parts.sets.unhold(held);
      done(failure, set);
    };
    this.parts.inFlight.whenRoom(
      () => this.tryMatch(keys, options, within, finish),
      'bounded',
      (reason) => {
        finish(failureOf(reason), undefined);
      },
    );
  }

  private tryMatch(
    keys: KeySpan,
    options: MatchOptions,
    within: readonly ExtentSet[],
    done: Done<SlotSet | undefined>,
  ): boolean {
    const worker = this.parts.inFlight.leastBusy();
    if (worker < 0) return false;
    const { destinations } = options;
    const isPinning = options.pin ?? true;
    const set = this.parts.extents.make({
      count: keys.count,
      keys,
      indexes: destinations?.indexes,
      leases: within,
      flags:
        (isPinning ? ExtentFlag.Pin : 0) |
        (destinations === undefined ? 0 : ExtentFlag.CheckDestinations) |
        (options.within === undefined ? 0 : ExtentFlag.CountUnique),
      pinLimit: Math.min(options.pinLimit ?? keys.count, this.parts.numBlocks),
      peerNumBlocks: destinations?.numBlocks ?? 0,
      isReadInPlace: true,
    });
    if (set === undefined) return false;
    const isLimited = destinations !== undefined || options.pinLimit !== undefined || within.length > 0;
    const ranges = keys.count > SPLIT_KEYS && !isLimited ? this.rangesOf(keys.count) : [];
    const operation = {
      opcode: Opcode.Match,
      extent: set.extent,
      arg0: 0,
      arg1: -1,
      arg2: 0,
      onWorkerLost: 'ifRecorded' as const,
      done: (outcome: Outcome | typeof CLOSED, hits: number, pending: number, leading: number): void => {
        if (outcome !== Outcome.Ok) {
          set.recount();
          this.parts.sets.countPins(set);
          this.parts.sets.drop(set);
          done(failureOf(outcome), undefined);
          return;
        }
        if (keys.foreign !== undefined) {
          const statuses = this.parts.extents.memory.statusesAt(set.extent);
          this.parts.extents.markForeign(statuses, keys.foreign, keys.count, PositionStatus.Miss);
        }
        if (ranges.length > 1 || hits === LOST_RESULT) {
          set.recount();
        } else {
          set.counts.pinned = isPinning ? hits : 0;
          set.counts.pending = pending;
          set.counts.leading = leading;
        }
        this.parts.sets.countPins(set);
        this.parts.extents.trim(set);
        done(undefined, set);
      },
    };
    const { matchHere } = this.parts;
    const isIdle = this.parts.inFlight.openCount === this.parts.sets.openReleaseCount;
    if (matchHere !== undefined && this.parts.mainShare.takesMatch(keys.count, isIdle)) {
      const packed = matchHere(set.extent);
      // Never before the asking call has returned.
      queueMicrotask(() => {
        if (packed < 0) {
          operation.done(-packed as Outcome, 0, 0, 0);
          return;
        }
        const { hitCount, pendingCount, leadingCount } = unpackMatch(packed);
        operation.done(Outcome.Ok, hitCount, pendingCount, leadingCount);
      });
      return true;
    }
    if (ranges.length > 1) this.parts.inFlight.submitRanges(operation, ranges);
    else this.parts.inFlight.submit(operation, 1 << worker);
    return true;
  }

  /** Contiguous ranges of equal length over the workers that live and have room. */
  private rangesOf(count: number): { worker: number; first: number; count: number }[] {
    const workers = Array.from({ length: this.parts.inFlight.workerCount }, (_, worker) => worker).filter(
      (worker) => this.parts.inFlight.hasRoom(1 << worker),
    );
    const share = Math.ceil(count / workers.length);
    return workers.map((worker, i) => ({
      worker,
      first: i * share,
      count: Math.min(share, count - i * share),
    }));
  }
}
