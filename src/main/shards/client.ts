// The shard client: what the session layer asks of the shards, as operations on the workers' rings.

import { type BufferToken, unpackMatch } from '../../../native/index.js';
import { type Layout, MAX_EXTENT_KEYS } from '../../shared/layout.js';
import { ExtentFlag, Opcode, Outcome, PositionStatus } from '../../shared/operations.js';
import { Phase, SlotTable, generationOf, phaseOf } from '../../shared/slot-state.js';
import { KvpeerError } from '../errors.js';
import { ByteOperations } from './byte-operations.js';
import { DataPeers } from './data-peers.js';
import { Extents } from './extents.js';
import { failureOf } from './failures.js';
import { MainShare } from './main-share.js';
import { type CLOSED, LOST_RESULT, OperationsInFlight } from './operations-in-flight.js';
import type {
  AddPeerRequest,
  DataPeer,
  Done,
  KeySpan,
  MatchOptions,
  ServeHandle,
  ServeRequest,
  ServeResult,
  ShardClient,
  SlotSet,
} from './shard-client.js';
import { type ExtentSet, ownSet } from './slot-set.js';
import { SlotSets } from './slot-sets.js';

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
  private readonly mainShare = new MainShare(() => performance.now());
  private readonly sets: SlotSets;
  private readonly bytes: ByteOperations;

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
    this.sets = new SlotSets({
      inFlight: this.inFlight,
      extents: this.extents,
      mainShare: this.mainShare,
      release: options.release,
      onSettled: (set) => {
        this.onSettled(set);
      },
      whenLanded: options.whenLanded,
    });
    this.bytes = new ByteOperations({
      layout,
      inFlight: this.inFlight,
      extents: this.extents,
      sets: this.sets,
      holdBuffer: options.holdBuffer,
      dropBuffer: options.dropBuffer,
    });
    this.peers = new DataPeers({
      layout,
      inFlight: this.inFlight,
      extents: this.extents,
      movers: options.movers,
      sets: this.sets,
      onTrouble: options.onTrouble,
    });
  }

  /** Pins that sets hold now. */
  get pinCount(): number {
    return this.sets.pinCount;
  }

  /** The workers have exited: whatever is open or waiting ends with KVPEER_CLOSED, and the mapping is not used again. */
  close(): void {
    this.sets.close();
    this.inFlight.close();
  }

  whileAwake(run: () => void): void {
    this.inFlight.whileAwake(run);
  }

  // ---- keys

  match(keys: KeySpan, options: MatchOptions, done: Done<SlotSet | undefined>): void {
    this.checkKeys(keys);
    const within = (options.within ?? []).map(ownSet);
    for (const set of within) set.holdCount += 1;
    const finish: Done<SlotSet | undefined> = (failure, set) => {
      for (const held of within) this.sets.unhold(held);
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
          this.sets.countPins(set);
          this.sets.drop(set);
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
        this.sets.countPins(set);
        this.extents.trim(set);
        done(undefined, set);
      },
    };
    const { matchHere } = this.options;
    const isIdle = this.inFlight.openCount === this.sets.openReleaseCount;
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
          this.sets.countPins(set);
          this.extents.trim(set);
          if (outcome === Outcome.Ok) {
            done(undefined, set);
            return;
          }
          this.sets.undoReservation(set);
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
      this.sets.submit(set, Opcode.Evict, 0, owners, 'repeat', (failure) => {
        let evictedCount = 0;
        for (const status of set.statuses) if (status === PositionStatus.Found) evictedCount += 1;
        this.sets.giveBack(set);
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
    this.sets.release(ownSet(set));
  }

  publish(set: SlotSet, options: { readonly keepPins: boolean }, done: Done<undefined>): void {
    this.sets.publish(ownSet(set), options.keepPins, done);
  }

  abandon(set: SlotSet, options: { readonly quarantine: boolean }, done: Done<undefined>): void {
    this.sets.abandon(ownSet(set), options.quarantine, done);
  }

  unquarantine(set: SlotSet, done: Done<undefined>): void {
    this.sets.unquarantine(ownSet(set), done);
  }

  markUnwritten(set: SlotSet, positions: Int32Array): void {
    ownSet(set).markUnwritten(positions);
  }

  // ---- block bytes

  copyIn(set: SlotSet, source: Uint8Array, done: Done<undefined>): void {
    this.bytes.copyIn(ownSet(set), source, done);
  }

  fill(set: SlotSet, done: Done<undefined>): void {
    this.bytes.fill(ownSet(set), done);
  }

  poison(set: SlotSet, done: Done<undefined>): void {
    this.bytes.poison(ownSet(set), done);
  }

  verify(set: SlotSet, done: Done<{ readonly mismatchCount: number }>): void {
    this.bytes.verify(ownSet(set), done);
  }

  checksum(set: SlotSet, done: Done<undefined>): void {
    this.bytes.checksum(ownSet(set), done);
  }

  verifyChecksums(set: SlotSet, expected: Uint8Array, done: Done<{ readonly damagedCount: number }>): void {
    this.bytes.verifyChecksums(ownSet(set), expected, done);
  }

  checksumsOf(set: SlotSet): Uint8Array {
    return this.bytes.checksumsOf(ownSet(set));
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
