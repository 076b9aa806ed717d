// What main and a shard worker say to each other: operation codes, ring records, and the extent in the request arena.

/**
 * One submission or completion record is RECORD_WORDS int32 words.
 *
 *     submission   [opcode, opNumber, extentUnit, arg0, arg1, arg2, arg3, 0]
 *     completion   [opcode, opNumber, extentUnit, outcome, result0, result1, result2, result3]
 *
 * `extentUnit` is the extent's byte offset in the control mapping divided by EXTENT_UNIT_BYTES (the mapping may be
 * 4 GiB, an int32 may not), or NO_EXTENT. Operation numbers are positive int32, never reused while one is open.
 */
export const RECORD_WORDS = 8;
export const EXTENT_UNIT_BYTES = 64;
export const NO_EXTENT = -1;

export const Opcode = {
  /** Probe every key (all shards), pin the READY ones. One worker, one native call. */
  Match: 1,
  /** Unpin every PINNED position. Any worker. */
  Release: 2,
  /** Find or insert every key. arg0 = chain position of key 0. To the owners, same extent; the last one completes. */
  Reserve: 3,
  /**
   * RESERVED positions become READY; with KEEP_PINS they become PINNED positions. With DROP_UNWRITTEN, UNWRITTEN ones
   * become FREE. Owners.
   */
  Publish: 4,
  /** RESERVED (or DAMAGED, UNWRITTEN) positions become FREE, or QUARANTINED with TO_QUARANTINE. Owners. */
  Abandon: 5,
  /** QUARANTINED positions become FREE. Owners. */
  Unquarantine: 6,
  /** READY blocks with these keys and no pin are evicted: their positions become FOUND. Owners. */
  Evict: 7,
  /** Write the PINNED positions to a remote peer's slots. arg0 = peerId. The mover that holds the peer. */
  Serve: 8,
  /** Drop what serve `arg0` (an operation number) has not posted; the serve still completes. No completion of its own. */
  CancelServe: 9,
  /** Cut every unfinished write to peer arg0 (retire, then destroy, the send agent). Completes when none can land. */
  HardStop: 10,
  /** Load a peer: extent holds the metadata blob. arg0 = peerId, arg1 = numBlocks, arg2 = flags, base address in the header. */
  AddPeer: 11,
  /** Forget peer arg0 once its requests have ended or were stopped. */
  RemovePeer: 12,
  /** Copy block i of a foreign buffer (arg0 = its token) into position i, where that is RESERVED. Any worker. */
  CopyIn: 13,
  /** Fill RESERVED positions with the content that belongs to their key (see native `fillFromKey`). Any worker. */
  Fill: 14,
  /** Overwrite RESERVED positions with 0xA5. Any worker. */
  Poison: 15,
  /** Compare PINNED positions with the content of their key; result0 = mismatching blocks. Any worker. */
  Verify: 16,
  /** Store the checksum of RESERVED positions in their records (before publish). Any worker. */
  Checksum: 17,
  /** Compare RESERVED positions with the checksums given in the extent; a damaged one becomes DAMAGED. Any worker. */
  VerifyChecksum: 18,
  /**
   * Rebuild the shard's index and free list from its slot records: the first operation of a replaced owner, and of an
   * adopted pool. arg0 = RebuildMode. The extent is working space: REBUILD_BATCH_KEYS positions with packed keys.
   */
  Rebuild: 19,
} as const;
export type Opcode = (typeof Opcode)[keyof typeof Opcode];

/** How an operation ended. */
export const Outcome = {
  Ok: 0,
  /** Serve: a key is not in the leases named by the extent; nothing was written (without PARTIAL). */
  NotInLease: 1,
  /** Match or Serve: a destination index is >= the peer's num_blocks, or given twice, or a key is given twice. */
  BadDestination: 2,
  /** Serve: NIXL reported a failure. */
  WriteFailed: 3,
  /** Serve: unposted parts were dropped on request; the posted ones have ended. */
  Cancelled: 4,
  /** Serve: cut by a hard stop; nothing of it can land any more (but for what sits in socket buffers). */
  Stopped: 5,
  /** AddPeer: NIXL refused the metadata. */
  BadMetadata: 6,
  /** Serve or AddPeer: the peer is not known to this mover. */
  UnknownPeer: 7,
  /** The node runs with --data-plane none. */
  NoDataPlane: 8,
  /** The worker met an unexpected error; its text is in the log. */
  Fault: 9,
  /** Made by the supervisor, never by a worker: the worker died before the operation was recorded. */
  WorkerLost: 10,
} as const;
export type Outcome = (typeof Outcome)[keyof typeof Outcome];

/**
 * Status of one position of an extent. HIT and MISS are the msgpack bytes of true and false, so that a lookup answer
 * is one copy of the status bytes when nothing is pending.
 */
export const PositionStatus = {
  Miss: 0xc2,
  /** READY and pinned by this extent. */
  Pinned: 0xc3,
  /** Being written by another load or store: slot and generation are given, not pinned. */
  Pending: 1,
  /** WRITING and owned by this extent. */
  Reserved: 2,
  /** Reserve found no slot. */
  Full: 3,
  /** Quarantined, still owned by this extent. */
  Quarantined: 4,
  /** Set by main before the submission: leave this position alone (a key of a foreign length, or not wanted). Reads as a miss. */
  Skip: 5,
  /** VerifyChecksum: the bytes do not fit; otherwise as Reserved. */
  Damaged: 6,
  /** READY, found by a match without PIN. */
  Found: 7,
  /** Set by main: Reserved, but nobody wrote the block, and nobody will. */
  Unwritten: 8,
} as const;
export type PositionStatus = (typeof PositionStatus)[keyof typeof PositionStatus];

/** Flags in the extent's FLAGS word. */
export const ExtentFlag = {
  /** Match: pin what is READY (otherwise READY reads as FOUND). */
  Pin: 1,
  /** Match: the extent has destination indexes; check them against PEER_NUM_BLOCKS and for duplicates. */
  CheckDestinations: 2,
  /** Match: the pins of the LEASES extents and this one may name at most PIN_LIMIT different slots. */
  CountUnique: 4,
  /** Serve: resolve the keys through the slots of the LEASES extents; otherwise the extent is resolved already. */
  ByLease: 8,
  /** Publish: keep one pin per position. */
  KeepPins: 16,
  /** Abandon: QUARANTINED instead of FREE. */
  ToQuarantine: 32,
  /**
   * Match: the keys are not in the extent but in a message that main keeps (native/zmq.ts): PEER_NUM_BLOCKS is its token
   * and KEYS_OFFSET counts from its start.
   */
  KeysInMessage: 64,
  /** Serve by lease: keys that are not in the leases are misses, the others are written. */
  Partial: 128,
  /** Publish: there are UNWRITTEN positions. */
  DropUnwritten: 256,
} as const;

/**
 * An extent of the arena: one operation's arguments and results, and afterwards a slot set (a lease, a reservation, a
 * quarantine), until main gives it back.
 *
 *     0                64         slots         generations   leases*       indexes*      keys
 *     | header 16 x i32 | u8 status | i32 per key | u16 per key | i32 per lease | i32 per key | key bytes, stride apart |
 *                       (* absent when the header says 0)            every array starts on a multiple of 8
 *
 * Nobody relies on the order of the arrays, only on the offsets in the header. Main puts the indexes and the keys last
 * and gives that end of the extent back when Match or Reserve has completed: IndexesOffset and KeysOffset are 0 from
 * then on. So only Match, Reserve, Evict and a Serve by lease may read keys of the extent; every other operation that
 * needs a block's key takes it from the slot record.
 *
 * Header words (int32). Offsets are bytes from the extent's start.
 */
export const ExtentWord = {
  /** Bit w set by worker w as the last store of its part: its pins and records are complete (design: worker death). */
  Recorded: 0,
  /**
   * Bit w: worker w has a part of the operation and has not finished it. The one whose Atomics.and() takes it to 0
   * posts the completion. Bits, not a count: after a worker's death it must be plain whose part is done.
   */
  OwnersLeft: 1,
  /** First outcome that is not Ok wins (compare-and-swap from 0). */
  Outcome: 2,
  Count: 3,
  Flags: 4,
  KeysOffset: 5,
  KeyStride: 6,
  SlotsOffset: 7,
  GenerationsOffset: 8,
  IndexesOffset: 9,
  LeasesOffset: 10,
  LeaseCount: 11,
  StatusesOffset: 12,
  /** Match: most pins this operation may take (keys beyond it are misses, in order). With CountUnique: most different slots. */
  PinLimit: 13,
  /** Match with CheckDestinations, Serve: the remote peer's num_blocks. AddPeer: bytes of the blob. */
  PeerNumBlocks: 14,
  /** Bytes of the whole extent. */
  Bytes: 15,
} as const;
export const EXTENT_HEADER_BYTES = 64;
/** Leases that one Match or Serve may name. */
export const MAX_LEASES = 65_536;

/**
 * What Rebuild keeps. Replaced: READY with its pins; WRITING and QUARANTINED slots that main has marked as owned by a
 * live extent (all visited bits set, which have no other meaning in these phases). Adopted: READY, without pins.
 */
export const RebuildMode = { Replaced: 0, Adopted: 1 } as const;
export type RebuildMode = (typeof RebuildMode)[keyof typeof RebuildMode];
export const REBUILD_BATCH_KEYS = 1024;

/** AddPeer: the peer's scratch page exists (arg2 bit 0). The base address is a float64 at this offset of the key area. */
export const ADD_PEER_SCRATCH = 1;
