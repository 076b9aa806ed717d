// The life of slot sets after they were made: what becomes of their slots, and giving pins and memory back.

import { ExtentFlag, ExtentWord, Opcode, PositionStatus } from '../../shared/operations.js';
import type { Extents } from './extents.js';
import { failureOf } from './failures.js';
import type { MainShare } from './main-share.js';
import type { OnWorkerLost, OperationsInFlight } from './operations-in-flight.js';
import type { Done, Failure } from './shard-client.js';
import type { ExtentSet } from './slot-set.js';

export interface SlotSetsParts {
  readonly inFlight: OperationsInFlight;
  readonly extents: Extents;
  readonly mainShare: MainShare;
  /** Native `release` on the control mapping. */
  readonly release: (extent: number) => void;
  /** See ShardClient. */
  readonly onSettled: (set: ExtentSet) => void;
  /** See ShardsClientOptions. */
  readonly whenLanded: ((then: () => void) => void) | undefined;
}

export class SlotSets {
  private readonly parts: SlotSetsParts;
  private pins = 0;
  private openReleases = 0;
  private isClosed = false;

  constructor(parts: SlotSetsParts) {
    this.parts = parts;
  }

  /** Pins that sets hold now. */
  get pinCount(): number {
    return this.pins;
  }

  /** Releases that a worker has in hand: nobody waits for them. */
  get openReleaseCount(): number {
    return this.openReleases;
  }

  /** From now on no pin is given back: the mapping is not used again. */
  close(): void {
    this.isClosed = true;
  }

  /** A match or a reservation has taken the set's pins. */
  countPins(set: ExtentSet): void {
    this.pins += set.counts.pinned;
  }

  release(set: ExtentSet): void {
    set.checkIdle();
    const { reserved, damaged, unwritten, quarantined } = set.counts;
    if (reserved + damaged + unwritten + quarantined > 0) {
      throw new Error('a set with reserved or quarantined slots is not released but published or abandoned');
    }
    this.drop(set);
  }

  publish(set: ExtentSet, keepPins: boolean, done: Done<undefined>): void {
    const { reserved, unwritten } = set.counts;
    const hasUnwritten = unwritten > 0;
    this.settle(
      set,
      Opcode.Publish,
      (keepPins ? ExtentFlag.KeepPins : 0) | (hasUnwritten ? ExtentFlag.DropUnwritten : 0),
      hasUnwritten ? [PositionStatus.Reserved, PositionStatus.Unwritten] : [PositionStatus.Reserved],
      (failure) => {
        if (failure === undefined) {
          set.counts.reserved = 0;
          set.counts.unwritten = 0;
          if (keepPins) {
            set.counts.pinned += reserved;
            this.pins += reserved;
          }
        }
        this.dropDamaged(set, failure, (settled) => {
          if (settled === undefined) this.parts.onSettled(set);
          done(settled, undefined);
          if (settled === undefined && !keepPins) this.drop(set);
        });
      },
    );
  }

  /** Slots whose bytes were found damaged are FREE again; their positions are misses. */
  private dropDamaged(
    set: ExtentSet,
    failure: Failure | undefined,
    done: (failure: Failure | undefined) => void,
  ): void {
    if (failure !== undefined || set.counts.damaged === 0) {
      done(failure);
      return;
    }
    this.settle(set, Opcode.Abandon, 0, [PositionStatus.Damaged], (abandoned) => {
      if (abandoned === undefined) set.counts.damaged = 0;
      done(abandoned);
    });
  }

  abandon(set: ExtentSet, quarantine: boolean, done: Done<undefined>): void {
    const { damaged, unwritten } = set.counts;
    const reserved = set.counts.reserved + damaged + unwritten;
    const flags = quarantine ? ExtentFlag.ToQuarantine : 0;
    // The workers give up damaged and unwritten positions with the others; a shard may have none but such.
    const statuses =
      damaged + unwritten > 0
        ? [PositionStatus.Reserved, PositionStatus.Damaged, PositionStatus.Unwritten]
        : [PositionStatus.Reserved];
    this.settle(set, Opcode.Abandon, flags, statuses, (failure) => {
      if (failure !== undefined) {
        done(failure, undefined);
        return;
      }
      set.counts.reserved = 0;
      set.counts.damaged = 0;
      set.counts.unwritten = 0;
      if (quarantine) {
        set.counts.quarantined += reserved;
        this.unpinNow(set);
      }
      this.parts.onSettled(set);
      done(undefined, undefined);
      if (!quarantine) this.drop(set);
    });
  }

  unquarantine(set: ExtentSet, done: Done<undefined>): void {
    this.settle(set, Opcode.Unquarantine, 0, [PositionStatus.Quarantined], (failure) => {
      if (failure === undefined) set.counts.quarantined = 0;
      done(failure, undefined);
      if (failure === undefined) this.drop(set);
    });
  }

  /** A reservation failed: what other owners have done of it is undone. Others may wait for these keys already. */
  undoReservation(set: ExtentSet): void {
    this.settle(set, Opcode.Abandon, 0, [PositionStatus.Reserved], () => {
      set.recount();
      this.parts.onSettled(set);
      this.drop(set);
    });
  }

  /** Sends an operation on the set's positions with these statuses to their owners. It never ends for want of room. */
  private settle(
    set: ExtentSet,
    opcode: Opcode,
    flags: number,
    statuses: readonly PositionStatus[],
    done: (failure: Failure | undefined) => void,
  ): void {
    set.checkIdle();
    set.isBusy = true;
    let owners = 0;
    for (const status of statuses) owners |= this.parts.extents.ownersOf(set, status);
    const finish = (failure: Failure | undefined): void => {
      set.isBusy = false;
      done(failure);
    };
    const isFreeing = opcode === Opcode.Unquarantine || (opcode === Opcode.Abandon && flags === 0);
    if (owners === 0) {
      queueMicrotask(() => {
        finish(undefined);
      });
      return;
    }
    const attempt = (): boolean => {
      if (!this.parts.inFlight.hasRoom(owners)) return false;
      this.parts.extents.memory.setHeader(set.extent, ExtentWord.Flags, flags);
      this.submit(set, opcode, 0, owners, 'repeat', finish);
      return true;
    };
    const submit = (): void => {
      this.parts.inFlight.whenRoom(attempt, 'must', (reason) => {
        finish(failureOf(reason));
      });
    };
    if (isFreeing && this.parts.whenLanded !== undefined) this.parts.whenLanded(submit);
    else submit();
  }

  /** Gives an operation on the set to its owners, who must have room. */
  submit(
    set: ExtentSet,
    opcode: Opcode,
    arg0: number,
    owners: number,
    onWorkerLost: OnWorkerLost,
    done: (failure: Failure | undefined, result0: number) => void,
  ): void {
    this.parts.inFlight.submit(
      {
        opcode,
        extent: set.extent,
        arg0,
        arg1: 0,
        arg2: 0,
        onWorkerLost,
        done: (outcome, result0) => {
          done(failureOf(outcome), result0);
        },
      },
      owners,
    );
  }

  /** Gives pins and extent back, as soon as no operation reads the set. The caller's views end here. */
  drop(set: ExtentSet): void {
    set.isReleased = true;
    if (set.holdCount > 0 || this.isClosed) return;
    if (this.parts.mainShare.takesRelease(set.counts.pinned)) {
      this.unpinNow(set);
      this.giveBack(set);
      return;
    }
    const attempt = (): boolean => {
      const worker = this.parts.inFlight.leastBusy();
      if (worker < 0) return false;
      this.openReleases += 1;
      this.submit(set, Opcode.Release, 0, 1 << worker, 'repeatAnywhere', (failure) => {
        this.openReleases -= 1;
        if (failure?.code === 'KVPEER_CLOSED') return;
        this.pins -= set.counts.pinned;
        this.giveBack(set);
      });
      return true;
    };
    this.parts.inFlight.whenRoom(attempt, 'must', () => undefined);
  }

  private unpinNow(set: ExtentSet): void {
    if (set.counts.pinned === 0 || this.isClosed) return;
    this.parts.release(set.extent);
    this.pins -= set.counts.pinned;
    set.counts.pinned = 0;
  }

  /** Somebody who counted himself in its holdCount reads it no more. */
  unhold(set: ExtentSet): void {
    set.holdCount -= 1;
    if (set.holdCount === 0 && set.isReleased) this.drop(set);
  }

  /** Gives back the memory of a set that has no pins. */
  giveBack(set: ExtentSet): void {
    this.parts.extents.giveBack(set);
    if (this.parts.inFlight.waitingCount > 0) this.parts.inFlight.pump();
  }
}
