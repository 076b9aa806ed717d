// The contract between the session layer and the shards: what can be asked of the pool, and how the answers come.

import type { MessageToken } from '../../../native/zmq.js';
import type { Outcome, PositionStatus } from '../../shared/operations.js';

/**
 * A list of keys inside a buffer, never one object per key: key i is the bytes
 * `bytes[first + i * stride .. + keyBytes]`. A packed list has `first` 0 and `stride` keyBytes.
 * `foreign` marks (bit i, least significant first) keys whose length is not the node's: they are misses.
 */
export interface KeySpan {
  readonly bytes: Uint8Array;
  readonly first: number;
  readonly stride: number;
  readonly count: number;
  /** The keys are in this message, at the same offsets: a match reads them there. Kept until the match is done. */
  readonly message?: MessageToken | undefined;
  readonly foreign?: Uint8Array | undefined;
  /** Position of key 0 in its chain of blocks (default 0). Reservations keep it: of equals, the deepest block is evicted. */
  readonly chainStart?: number | undefined;
}

/**
 * The result of a match or a reservation, alive in the request arena until it is given back. Positions are the keys
 * of the list, in its order, duplicates included. `statuses` and `slots` are views of shared memory, borrowed until
 * the set is given back by release() / abandon() / unquarantine().
 */
export interface SlotSet {
  readonly count: number;
  /** PositionStatus per key. */
  readonly statuses: Uint8Array;
  /** Slot per key, -1 where there is none. */
  readonly slots: Int32Array;
  /** Generation per key, of the slot at the time of the operation (for Pending and Reserved). */
  readonly generations: Uint16Array;
  /** Positions with status Pinned. */
  readonly pinnedCount: number;
  /** Positions with status Pending. */
  readonly pendingCount: number;
  /** Positions with status Reserved. */
  readonly reservedCount: number;
  /** Positions from the start that are Pinned or Found. */
  readonly leadingCount: number;
  /** Opaque to the session layer. */
  readonly extent: number;
}

export type Failure =
  /** No room in a ring or in the arena for longer than `queueMs`. */
  | { readonly code: 'KVPEER_BUSY' }
  | { readonly code: 'KVPEER_WORKER_LOST' }
  | { readonly code: 'KVPEER_CLOSED' }
  | { readonly code: 'outcome'; readonly outcome: Outcome };

/** Exactly one call per operation, never before the asking call has returned. */
export type Done<T> = (failure: Failure | undefined, result: T) => void;

export interface MatchOptions {
  /** Take a pin on each READY block (default true). Without: statuses are Found, nothing to release but the extent. */
  readonly pin?: boolean;
  /** At most this many pins; keys beyond are misses, in order. With `within`: at most this many different slots over all of them. */
  readonly pinLimit?: number;
  readonly within?: readonly SlotSet[];
  /** A fetch: destination slots, one per key, checked against the peer's num_blocks and for duplicates (also of keys): outcome BadDestination. */
  readonly destinations?: { readonly indexes: Int32Array; readonly numBlocks: number };
}

export interface ServeRequest {
  readonly peer: DataPeer;
  /** Destination slot per key. */
  readonly indexes: Int32Array;
  /** By lease: the keys are resolved through these sets' pins, nothing is pinned again. */
  readonly byLease?: {
    readonly keys: KeySpan;
    readonly leases: readonly SlotSet[];
    /** Keys that the leases do not hold are left out; without it they fail the whole serve. */
    readonly isPartial?: boolean;
  };
  /** Resolved: a set from match() of the fetch's own keys; its Pinned positions are written. */
  readonly resolved?: SlotSet;
}

export interface ServeResult {
  readonly blockCount: number;
  readonly bytes: number;
  /** A partial serve that left keys out and has ended well: which ones it wrote, see shared/bitmap.ts. */
  readonly written?: Uint8Array | undefined;
}

export interface ServeHandle {
  /** Nothing more of it is posted; done comes once the posted parts have ended (outcome Cancelled). */
  cancelUnposted(): void;
}

/** A remote peer as the data plane knows it, bound to one mover. */
export interface DataPeer {
  readonly peerId: number;
  readonly numBlocks: number;
}

export interface AddPeerRequest {
  readonly agentMetadata: Uint8Array;
  readonly baseAddr: number;
  readonly numBlocks: number;
  /** The peer registered a scratch page behind its last block: its first write is made there, now. */
  readonly hasScratch: boolean;
}

/**
 * The shards as main sees them. Sets are given back by exactly one of release(), abandon(), unquarantine() (or
 * publish() without pins).
 */
export interface ShardClient {
  readonly numBlocks: number;
  readonly blockBytes: number;
  readonly keyBytes: number;

  /**
   * Runs something that may ask for operations, and then handles what has been completed meanwhile: no worker has to
   * wake the main thread for it.
   */
  whileAwake(run: () => void): void;

  match(keys: KeySpan, options: MatchOptions, done: Done<SlotSet | undefined>): void;
  /** Unpins the set's Pinned positions and gives the extent back. Throws when Reserved or Quarantined ones remain. */
  release(set: SlotSet): void;

  /**
   * Find or insert: each key becomes Reserved, Pinned (was READY), Pending (another load writes it, or an earlier
   * position of this very list) or Full. Keys marked `foreign` stay Skip.
   */
  reserve(keys: KeySpan, done: Done<SlotSet | undefined>): void;
  /** Reserved -> READY. With keepPins the positions are Pinned afterwards and the set lives on; without, Pinned ones are released and the set is given back. */
  publish(set: SlotSet, options: { readonly keepPins: boolean }, done: Done<undefined>): void;
  /** Reserved -> FREE (set given back, pins released) or -> QUARANTINED (set lives until unquarantine; pins released). */
  abandon(set: SlotSet, options: { readonly quarantine: boolean }, done: Done<undefined>): void;
  unquarantine(set: SlotSet, done: Done<undefined>): void;
  evict(keys: KeySpan, done: Done<{ readonly evictedCount: number }>): void;

  addPeer(request: AddPeerRequest, done: Done<DataPeer | undefined>): void;
  removePeer(peer: DataPeer, done: Done<undefined>): void;
  serve(request: ServeRequest, done: Done<ServeResult>): ServeHandle;
  /** Cuts every unfinished write to the peer; the serves end with outcome Stopped first, then this one. */
  hardStop(peer: DataPeer, done: Done<undefined>): void;

  /** Phase and generation of a slot now (for keys that were Pending: did it settle meanwhile?). */
  isStillWriting(slot: number, generation: number): boolean;
  /**
   * Called for every PUBLISH and ABANDON that completed, just before its done: the set's Reserved positions have
   * settled and are now Pinned (keepPins), Found (published without), Miss or Quarantined. `slots` and `generations`
   * still are those of the reservation; the set may be given back once the call has returned.
   */
  onSettled: (set: SlotSet) => void;

  /** Block i of a caller's buffer goes to position i if that is Reserved. The buffer (count * blockBytes) is held until done. */
  copyIn(set: SlotSet, source: Uint8Array, done: Done<undefined>): void;
  fill(set: SlotSet, done: Done<undefined>): void;
  /** Keeps a checksum of each Reserved position's bytes, before they are published. */
  checksum(set: SlotSet, done: Done<undefined>): void;
  /**
   * Compares the Reserved positions with checksums from elsewhere, 8 bytes per key, 0 where none is known. A damaged
   * one is Damaged afterwards and will be a miss: publish() gives its slot back.
   */
  verifyChecksums(set: SlotSet, expected: Uint8Array, done: Done<{ readonly damagedCount: number }>): void;
  /**
   * These Reserved positions never got their bytes, and no write to them was ever begun: publish() gives their slots
   * back, and without waiting for what may be on its way to others.
   */
  markUnwritten(set: SlotSet, positions: Int32Array): void;
  /** The checksums that are kept for the set's slots, 8 bytes per key, 0 where there is none. */
  checksumsOf(set: SlotSet): Uint8Array;
  poison(set: SlotSet, done: Done<undefined>): void;
  verify(set: SlotSet, done: Done<{ readonly mismatchCount: number }>): void;
}

/** True for the statuses that a lookup answers with a hit. */
export function isHit(status: number): boolean {
  return status === (0xc3 satisfies PositionStatus) || status === (7 satisfies PositionStatus);
}
