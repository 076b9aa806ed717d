// The shard client: what the session layer asks of the shards, as operations on the workers' rings.

import { type BufferToken, unpackMatch } from '../../../native/index.js';
import { type Layout, MAX_EXTENT_KEYS, RECORD_CHECKSUM, recordOffset } from '../../shared/layout.js';
import { ExtentFlag, ExtentWord, Opcode, Outcome, PositionStatus } from '../../shared/operations.js';
import { Phase, SlotTable, generationOf, phaseOf } from '../../shared/slot-state.js';
import { KvpeerError } from '../errors.js';
import { DataPeers } from './data-peers.js';
import { Extents } from './extents.js';
import { failureOf } from './failures.js';
import { MainShare } from './main-share.js';
import { type CLOSED, LOST_RESULT, type OnWorkerLost, OperationsInFlight } from './operations-in-flight.js';
import type {
  AddPeerRequest,
  DataPeer,
  Done,
  Failure,
  KeySpan,
  MatchOptions,
  ServeHandle,
  ServeRequest,
  ServeResult,
  ShardClient,
  SlotSet,
} from './shard-client.js';
import { ExtentSet } from './slot-set.js';

/** Lists above this are cut into ranges over several workers; below, the hop costs more than it brings. */
const SPLIT_KEYS = 8192;

export interface ShardsClientOptions {
  readonly control: SharedArrayBuffer;
  readonly layout: Layout;
  /** Native `release` on the control mapping. */
  readonly release: (extent: number) => void;
  /**
   * Native `match` of all positions, on this thread (see MainShare). Without it every list goes to a worker.
   */
  readonly matchHere?: (extent: number) => number;
  readonly holdBuffer: (source: Uint8Array) => BufferToken;
  readonly dropBuffer: (token: BufferToken) => void;
  /** Workers that move data; empty with --data-plane none. */
  readonly movers: readonly number[];
  /** How long an operation waits for room in rings and arena before it is KVPEER_BUSY. */
  readonly queueMs: number;
  readonly maxWaitingCount: number;
  readonly onTrouble: (text: string) => void;
  /** Delays what makes slots free that remote writes could reach (default: at once). See LandingGate. */
  readonly whenLanded?: (then: () => void) => void;
}

/** See shard-client.ts for the contract. Nothing here depends on how many keys a list has, but for one copy of its bytes. */
export class ShardsClient implements ShardClient {
  readonly numBlocks: number;
  readonly blockBytes: number;
  readonly keyBytes: number;
  readonly inFlight: OperationsInFlight;
  readonly extents: Extents;
  readonly peers: DataPeers;
  onSettled: (set: SlotSet) => void = () => undefined;

  private readonly options: ShardsClientOptions;
  private readonly table: SlotTable;
  private pins = 0;
  private isClosed = false;
  private readonly mainShare = new MainShare(() => performance.now());
  /** Releases that a worker has in hand: nobody waits for them. */
  private openReleaseCount = 0;

  constructor(options: ShardsClientOptions) {
    const { layout, control } = options;
    this.options = options;
    this.numBlocks = layout.numBlocks;
    this.blockBytes = layout.blockBytes;
    this.keyBytes = layout.keyBytes;
    this.table = new SlotTable(control, layout);
    this.extents = new Extents(control, layout, this.table);
    this.inFlight = new OperationsInFlight({
      control,
      layout,
      queueMs: options.queueMs,
      maxWaitingCount: options.maxWaitingCount,
    });
    this.peers = new DataPeers({
      layout,
      inFlight: this.inFlight,
      extents: this.extents,
      movers: options.movers,
      own: (set) => this.own(set),
      hold: (set) => {
        set.holdCount += 1;
      },
      unhold: (set) => {
        this.unhold(set);
      },
      giveBack: (set) => {
        this.giveBack(set);
      },
      onTrouble: options.onTrouble,
    });
  }

  /** Pins that sets hold now. */
  get pinCount(): number {
    return this.pins;
  }

  /** The workers have exited: whatever is open or waiting ends with KVPEER_CLOSED, and the mapping is not used again. */
  close(): void {
    this.isClosed = true;
    this.inFlight.close();
  }

  whileAwake(run: () => void): void {
    this.inFlight.whileAwake(run);
  }

  // ---- keys

  match(keys: KeySpan, options: MatchOptions, done: Done<SlotSet | undefined>): void {
    this.checkKeys(keys);
    const within = (options.within ?? []).map((set) => this.own(set));
    for (const set of within) set.holdCount += 1;
    const finish: Done<SlotSet | undefined> = (failure, set) => {
      for (const held of within) this.unhold(held);
      done(failure, set);
    };
    this.inFlight.whenRoom(
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
    const worker = this.inFlight.leastBusy();
    if (worker < 0) return false;
    const { destinations } = options;
    const isPinning = options.pin ?? true;
    const set = this.extents.make({
      count: keys.count,
      keys,
      indexes: destinations?.indexes,
      leases: within,
      flags:
        (isPinning ? ExtentFlag.Pin : 0) |
        (destinations === undefined ? 0 : ExtentFlag.CheckDestinations) |
        (options.within === undefined ? 0 : ExtentFlag.CountUnique),
      pinLimit: Math.min(options.pinLimit ?? keys.count, this.numBlocks),
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
          this.pins += set.counts.pinned;
          this.dropSet(set);
          done(failureOf(outcome), undefined);
          return;
        }
        if (keys.foreign !== undefined) {
          const statuses = this.extents.memory.statusesAt(set.extent);
          this.extents.markForeign(statuses, keys.foreign, keys.count, PositionStatus.Miss);
        }
        if (ranges.length > 1 || hits === LOST_RESULT) {
          set.recount();
        } else {
          set.counts.pinned = isPinning ? hits : 0;
          set.counts.pending = pending;
          set.counts.leading = leading;
        }
        this.pins += set.counts.pinned;
        this.extents.trim(set);
        done(undefined, set);
      },
    };
    const { matchHere } = this.options;
    const isIdle = this.inFlight.openCount === this.openReleaseCount;
    if (matchHere !== undefined && this.mainShare.takesMatch(keys.count, isIdle)) {
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
    if (ranges.length > 1) this.inFlight.submitRanges(operation, ranges);
    else this.inFlight.submit(operation, 1 << worker);
    return true;
  }

  /** Contiguous ranges of equal length over the workers that live and have room. */
  private rangesOf(count: number): { worker: number; first: number; count: number }[] {
    const workers = Array.from({ length: this.inFlight.workerCount }, (_, worker) => worker).filter(
      (worker) => this.inFlight.hasRoom(1 << worker),
    );
    const share = Math.ceil(count / workers.length);
    return workers.map((worker, i) => ({
      worker,
      first: i * share,
      count: Math.min(share, count - i * share),
    }));
  }

  reserve(keys: KeySpan, done: Done<SlotSet | undefined>): void {
    this.checkKeys(keys);
    this.inFlight.whenRoom(
      () => this.tryReserve(keys, done),
      'bounded',
      (reason) => {
        done(failureOf(reason), undefined);
      },
    );
  }

  private tryReserve(keys: KeySpan, done: Done<SlotSet | undefined>): boolean {
    const owners = this.inFlight.allOwners;
    if (!this.inFlight.hasRoom(owners)) return false;
    const set = this.extents.make({
      count: keys.count,
      keys,
      flags: ExtentFlag.Pin,
      pinLimit: keys.count,
      peerNumBlocks: 0,
      hasSlotsCleared: true,
    });
    if (set === undefined) return false;
    this.inFlight.submit(
      {
        opcode: Opcode.Reserve,
        extent: set.extent,
        arg0: keys.chainStart ?? 0,
        arg1: 0,
        arg2: 0,
        onWorkerLost: 'fail',
        done: (outcome) => {
          set.recount();
          this.pins += set.counts.pinned;
          this.extents.trim(set);
          if (outcome === Outcome.Ok) {
            done(undefined, set);
            return;
          }
          // What the other owners have done is undone; others may wait for these keys already.
          this.settle(set, Opcode.Abandon, 0, [PositionStatus.Reserved], () => {
            set.recount();
            this.onSettled(set);
            this.dropSet(set);
          });
          done(failureOf(outcome), undefined);
        },
      },
      owners,
    );
    return true;
  }

  evict(keys: KeySpan, done: Done<{ readonly evictedCount: number }>): void {
    this.checkKeys(keys);
    const attempt = (): boolean => {
      const owners = this.inFlight.allOwners;
      if (!this.inFlight.hasRoom(owners)) return false;
      const set = this.extents.make({ count: keys.count, keys, flags: 0, pinLimit: 0, peerNumBlocks: 0 });
      if (set === undefined) return false;
      this.submitOn(set, Opcode.Evict, 0, owners, 'repeat', (failure) => {
        let evictedCount = 0;
        for (const status of set.statuses) if (status === PositionStatus.Found) evictedCount += 1;
        this.giveBack(set);
        done(failure, { evictedCount });
      });
      return true;
    };
    this.inFlight.whenRoom(attempt, 'bounded', (reason) => {
      done(failureOf(reason), { evictedCount: 0 });
    });
  }

  isStillWriting(slot: number, generation: number): boolean {
    const state = this.table.state(slot);
    return phaseOf(state) === Phase.Writing && generationOf(state) === generation;
  }

  // ---- sets

  release(set: SlotSet): void {
    const own = this.own(set);
    this.checkIdle(own);
    const { reserved, damaged, unwritten, quarantined } = own.counts;
    if (reserved + damaged + unwritten + quarantined > 0) {
      throw new Error('a set with reserved or quarantined slots is not released but published or abandoned');
    }
    this.dropSet(own);
  }

  publish(set: SlotSet, options: { readonly keepPins: boolean }, done: Done<undefined>): void {
    const own = this.own(set);
    const { keepPins } = options;
    const { reserved, unwritten } = own.counts;
    const hasUnwritten = unwritten > 0;
    this.settle(
      own,
      Opcode.Publish,
      (keepPins ? ExtentFlag.KeepPins : 0) | (hasUnwritten ? ExtentFlag.DropUnwritten : 0),
      hasUnwritten ? [PositionStatus.Reserved, PositionStatus.Unwritten] : [PositionStatus.Reserved],
      (failure) => {
        if (failure === undefined) {
          own.counts.reserved = 0;
          own.counts.unwritten = 0;
          if (keepPins) {
            own.counts.pinned += reserved;
            this.pins += reserved;
          }
        }
        this.dropDamaged(own, failure, (settled) => {
          if (settled === undefined) this.onSettled(own);
          done(settled, undefined);
          if (settled === undefined && !keepPins) this.dropSet(own);
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

  abandon(set: SlotSet, options: { readonly quarantine: boolean }, done: Done<undefined>): void {
    const own = this.own(set);
    const { quarantine } = options;
    const { damaged, unwritten } = own.counts;
    const reserved = own.counts.reserved + damaged + unwritten;
    const flags = quarantine ? ExtentFlag.ToQuarantine : 0;
    // The workers give up damaged and unwritten positions with the others; a shard may have none but such.
    const statuses =
      damaged + unwritten > 0
        ? [PositionStatus.Reserved, PositionStatus.Damaged, PositionStatus.Unwritten]
        : [PositionStatus.Reserved];
    this.settle(own, Opcode.Abandon, flags, statuses, (failure) => {
      if (failure !== undefined) {
        done(failure, undefined);
        return;
      }
      own.counts.reserved = 0;
      own.counts.damaged = 0;
      own.counts.unwritten = 0;
      if (quarantine) {
        own.counts.quarantined += reserved;
        this.unpinNow(own);
      }
      this.onSettled(own);
      done(undefined, undefined);
      if (!quarantine) this.dropSet(own);
    });
  }

  unquarantine(set: SlotSet, done: Done<undefined>): void {
    const own = this.own(set);
    this.settle(own, Opcode.Unquarantine, 0, [PositionStatus.Quarantined], (failure) => {
      if (failure === undefined) own.counts.quarantined = 0;
      done(failure, undefined);
      if (failure === undefined) this.dropSet(own);
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
    this.checkIdle(set);
    set.isBusy = true;
    let owners = 0;
    for (const status of statuses) owners |= this.extents.ownersOf(set, status);
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
      if (!this.inFlight.hasRoom(owners)) return false;
      this.extents.memory.setHeader(set.extent, ExtentWord.Flags, flags);
      this.submitOn(set, opcode, 0, owners, 'repeat', finish);
      return true;
    };
    const submit = (): void => {
      this.inFlight.whenRoom(attempt, 'must', (reason) => {
        finish(failureOf(reason));
      });
    };
    if (isFreeing && this.options.whenLanded !== undefined) this.options.whenLanded(submit);
    else submit();
  }

  private submitOn(
    set: ExtentSet,
    opcode: Opcode,
    arg0: number,
    owners: number,
    onWorkerLost: OnWorkerLost,
    done: (failure: Failure | undefined, result0: number) => void,
  ): void {
    this.inFlight.submit(
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
  private dropSet(set: ExtentSet): void {
    set.isReleased = true;
    if (set.holdCount > 0 || this.isClosed) return;
    if (this.mainShare.takesRelease(set.counts.pinned)) {
      this.unpinNow(set);
      this.giveBack(set);
      return;
    }
    const attempt = (): boolean => {
      const worker = this.inFlight.leastBusy();
      if (worker < 0) return false;
      this.openReleaseCount += 1;
      this.submitOn(set, Opcode.Release, 0, 1 << worker, 'repeatAnywhere', (failure) => {
        this.openReleaseCount -= 1;
        if (failure?.code === 'KVPEER_CLOSED') return;
        this.pins -= set.counts.pinned;
        this.giveBack(set);
      });
      return true;
    };
    this.inFlight.whenRoom(attempt, 'must', () => undefined);
  }

  private unpinNow(set: ExtentSet): void {
    if (set.counts.pinned === 0 || this.isClosed) return;
    this.options.release(set.extent);
    this.pins -= set.counts.pinned;
    set.counts.pinned = 0;
  }

  private unhold(set: ExtentSet): void {
    set.holdCount -= 1;
    if (set.holdCount === 0 && set.isReleased) this.dropSet(set);
  }

  private giveBack(set: ExtentSet): void {
    this.extents.giveBack(set);
    if (this.inFlight.waitingCount > 0) this.inFlight.pump();
  }

  // ---- block bytes

  copyIn(set: SlotSet, source: Uint8Array, done: Done<undefined>): void {
    const own = this.own(set);
    const needed = own.count * this.blockBytes;
    if (source.length !== needed) {
      throw new KvpeerError(
        'KVPEER_INVALID_ARGUMENT',
        `${own.count} blocks of ${this.blockBytes} bytes are ${needed} bytes, not ${source.length}`,
      );
    }
    const token = this.options.holdBuffer(source);
    this.onBlocks(own, Opcode.CopyIn, token, (failure) => {
      this.options.dropBuffer(token);
      done(failure, undefined);
    });
  }

  fill(set: SlotSet, done: Done<undefined>): void {
    this.onBlocks(this.own(set), Opcode.Fill, 0, (failure) => {
      done(failure, undefined);
    });
  }

  poison(set: SlotSet, done: Done<undefined>): void {
    this.onBlocks(this.own(set), Opcode.Poison, 0, (failure) => {
      done(failure, undefined);
    });
  }

  verify(set: SlotSet, done: Done<{ readonly mismatchCount: number }>): void {
    this.onBlocks(this.own(set), Opcode.Verify, 0, (failure, result0) => {
      done(failure, { mismatchCount: failure === undefined ? result0 : 0 });
    });
  }

  checksum(set: SlotSet, done: Done<undefined>): void {
    this.onBlocks(this.own(set), Opcode.Checksum, 0, (failure) => {
      done(failure, undefined);
    });
  }

  verifyChecksums(set: SlotSet, expected: Uint8Array, done: Done<{ readonly damagedCount: number }>): void {
    const own = this.own(set);
    const area = this.extents.make({
      count: 0,
      spaceBytes: expected.length,
      flags: 0,
      pinLimit: 0,
      peerNumBlocks: 0,
    });
    if (area === undefined) {
      queueMicrotask(() => {
        done({ code: 'KVPEER_BUSY' }, { damagedCount: 0 });
      });
      return;
    }
    const at = this.extents.memory.keysAt(area.extent);
    this.extents.memory.bytes.set(expected, at);
    const damagedBefore = own.counts.damaged;
    this.onBlocks(own, Opcode.VerifyChecksum, at - own.extent, (failure) => {
      this.giveBack(area);
      // Counted, not added up: a worker that died in between has marked some and told nobody how many.
      own.recount();
      done(failure, { damagedCount: own.counts.damaged - damagedBefore });
    });
  }

  markUnwritten(set: SlotSet, positions: Int32Array): void {
    const own = this.own(set);
    this.checkIdle(own);
    const { bytes } = this.extents.memory;
    const statuses = this.extents.memory.statusesAt(own.extent);
    for (const position of positions) {
      if (bytes[statuses + position] !== PositionStatus.Reserved) continue;
      bytes[statuses + position] = PositionStatus.Unwritten;
      own.counts.reserved -= 1;
      own.counts.unwritten += 1;
    }
  }

  checksumsOf(set: SlotSet): Uint8Array {
    const { bytes } = this.extents.memory;
    const { slots, count } = set;
    const checksums = new Uint8Array(count * 8);
    for (let i = 0; i < count; i += 1) {
      if (slots[i] < 0) continue;
      const at = recordOffset(this.options.layout, slots[i]) + RECORD_CHECKSUM;
      checksums.set(bytes.subarray(at, at + 8), i * 8);
    }
    return checksums;
  }

  private onBlocks(
    set: ExtentSet,
    opcode: Opcode,
    arg0: number,
    done: (failure: Failure | undefined, result0: number) => void,
  ): void {
    this.checkIdle(set);
    set.isBusy = true;
    const finish = (failure: Failure | undefined, result0: number): void => {
      set.isBusy = false;
      done(failure, result0);
    };
    const attempt = (): boolean => {
      const worker = this.inFlight.leastBusy();
      if (worker < 0) return false;
      this.submitOn(set, opcode, arg0, 1 << worker, 'repeatAnywhere', finish);
      return true;
    };
    this.inFlight.whenRoom(attempt, 'must', (reason) => {
      finish(failureOf(reason), 0);
    });
  }

  // ---- remote peers

  addPeer(request: AddPeerRequest, done: Done<DataPeer | undefined>): void {
    this.peers.add(request, done);
  }

  removePeer(peer: DataPeer, done: Done<undefined>): void {
    this.peers.remove(peer, done);
  }

  serve(request: ServeRequest, done: Done<ServeResult>): ServeHandle {
    const count = request.byLease?.keys.count ?? request.resolved?.count;
    if (request.byLease !== undefined) this.checkKeys(request.byLease.keys);
    if (count !== request.indexes.length) {
      throw new KvpeerError(
        'KVPEER_INVALID_ARGUMENT',
        `a serve of ${count ?? 0} keys with ${request.indexes.length} destinations`,
      );
    }
    return this.peers.serve(request, done);
  }

  hardStop(peer: DataPeer, done: Done<undefined>): void {
    this.peers.hardStop(peer, done);
  }

  // ---- checks

  private own(set: unknown): ExtentSet {
    if (!(set instanceof ExtentSet)) throw new Error('not a slot set of this client');
    set.checkAlive();
    return set;
  }

  private checkIdle(set: ExtentSet): void {
    if (set.isBusy) throw new Error('the slot set has an operation under way');
  }

  private checkKeys(keys: KeySpan): void {
    // In a message natively, by every match.
    if (keys.message !== undefined) return;
    const { bytes, first, stride, count } = keys;
    const end = count === 0 ? first : first + (count - 1) * stride + this.keyBytes;
    if (count > MAX_EXTENT_KEYS || first < 0 || stride < 0 || end > bytes.length) {
      throw new KvpeerError(
        'KVPEER_INVALID_ARGUMENT',
        `a list of ${count} keys that ends at byte ${end} of ${bytes.length} (at most ${MAX_EXTENT_KEYS} keys)`,
      );
    }
  }
}
