// The shard client: what the session layer asks of the shards, handed to the part that does it; insertion and eviction here.

import type { BufferToken } from '../../../native/index.js';
import { type Layout, MAX_EXTENT_KEYS } from '../../shared/layout.js';
import { ExtentFlag, Opcode, Outcome, PositionStatus } from '../../shared/operations.js';
import { Phase, SlotTable, generationOf, phaseOf } from '../../shared/slot-state.js';
import { KvpeerError } from '../errors.js';
import { ByteOperations } from './byte-operations.js';
import { DataPeers } from './data-peers.js';
import { Extents } from './extents.js';
import { failureOf } from './failures.js';
import { MainShare } from './main-share.js';
import { Matches } from './matches.js';
import { OperationsInFlight } from './operations-in-flight.js';
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
import { ownSet } from './slot-set.js';
import { SlotSets } from './slot-sets.js';

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

  private readonly table: SlotTable;
  private readonly sets: SlotSets;
  private readonly matches: Matches;
  private readonly bytes: ByteOperations;

  constructor(options: ShardsClientOptions) {
    const { layout, control } = options;
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
    const mainShare = new MainShare(() => performance.now());
    this.sets = new SlotSets({
      inFlight: this.inFlight,
      extents: this.extents,
      mainShare,
      release: options.release,
      onSettled: (set) => {
        this.onSettled(set);
      },
      whenLanded: options.whenLanded,
    });
    this.matches = new Matches({
      numBlocks: layout.numBlocks,
      inFlight: this.inFlight,
      extents: this.extents,
      sets: this.sets,
      mainShare,
      matchHere: options.matchHere,
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
    this.matches.match(keys, options, done);
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
