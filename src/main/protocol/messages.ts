// The wire protocol: nine message types, ten messages (a fetch without keys is one of its own), field by field, and
// what becomes of a message that breaks a rule.
//
// One message is one msgpack map with string keys, sent as one ZeroMQ frame. The set is that of vLLM's P2P tier
// (0.27.1 to 0.33.0, byte for byte), so a vLLM engine can be the other end. It has no version number.
//
//      consumer                                   producer
//         |  connect  ------------------------------>  |      both sides send `connect` once, first,
//         |  <-----------------------------  connect   |      and answer a valid one with `connect_ack`;
//         |  connect_ack  -------------------------->  |      nothing else may be sent before the
//         |  <-------------------------  connect_ack   |      other side's `connect_ack` has come
//         |                                            |
//         |  lookup (id, keys, round)  ------------->  |      which of these keys do you hold? (they get pinned)
//         |  <---------  lookup_resp (id, keys, hits)  |      order and duplicates of the request are kept
//         |  fetch (id, keys, slots, round)  ------->  |      write these blocks into my slots
//         |  <==========  the bytes, by NIXL  =======  |
//         |  <-----  transfer_done (id, ok, round)     |      once per fetch that named keys
//         |                                            |
//         |  abort_fetch (id, round)  -------------->  |      no longer wanted
//         |  <------------  abort_ack (id, round)      |      nothing of that round can land any more
//         |  fetch (id, [], [], round)  ------------>  |      the request is finished; no answer
//         |  disconnect  <------------------------->   |      either side, best effort
//
// Rules for every message
// * Field order means nothing; of a field given twice the last one counts; unknown fields are stepped over.
// * Types are exact: a float is not an integer, nor is a boolean (vLLM accepts `true` as 1, and never sends it).
// * Integers may have any msgpack width. Strings of known fields are UTF-8, 1 to 512 bytes.
// * A key is a msgpack bin. One of another length than the node's is a miss, not an error. (`packed_keys`: one bin for
//   all of them.)
// * Bytes behind the map make the whole payload undecodable.
// * Extension fields (marked "extension") are sent only to a peer that announced them in `connect`. One that is
//   malformed counts as absent: the plain protocol works without it, and a later version may give it another form.

/** The `type` strings of the protocol. */
export const MESSAGE_TYPES = [
  'connect',
  'connect_ack',
  'disconnect',
  'lookup',
  'lookup_resp',
  'fetch',
  'transfer_done',
  'abort_fetch',
  'abort_ack',
] as const;

export type MessageType = (typeof MESSAGE_TYPES)[number];

/** msgpack `true` and `false`, the bytes in which hits travel. */
export const HIT = 0xc3;
export const MISS = 0xc2;

/** Stands in `blockIndexes` for a slot number above {@link MAX_BLOCK_INDEX}. */
export const INDEX_OVER_RANGE = -1;

/**
 * The bytes of a `keys` array as they came, for an answer that repeats them.
 * `payload[arrayStart .. arrayEnd)` is the array with its header. Borrowed from the message: whoever keeps it keeps the
 * whole message alive.
 */
export interface VerbatimKeys {
  readonly payload: Buffer;
  readonly arrayStart: number;
  readonly arrayEnd: number;
}

/**
 * A list of keys without an object per key: key i is `bytes[first + i * stride .. + keyBytes)`.
 *
 *     payload:  ... | dc 04 00 | c4 24 <36 bytes> | c4 24 <36 bytes> | ...
 *                   ^ arrayStart      ^ first            ^ first + stride
 *
 * Packed (one bin, extension `packed_keys`) there are no headers between the keys, and `stride` is `keyBytes`.
 *
 * When every key has the node's length and the same header, `bytes` is the message itself and nothing was copied.
 * Otherwise `bytes` is a packed copy (`first` 0, `stride` = `keyBytes`) in which the keys of another length are
 * zeroes and marked in `foreign`: they are misses.
 */
export interface KeyList extends VerbatimKeys {
  readonly bytes: Buffer;
  /** Offset in `bytes` of the first byte of key 0. */
  readonly first: number;
  readonly stride: number;
  readonly count: number;
  /** The node's key length. */
  readonly keyBytes: number;
  /** Positions whose key is not `keyBytes` long, one bit each, least significant bit first; undefined when none is. */
  readonly foreign: Uint8Array | undefined;
  readonly foreignCount: number;
}

/** Abilities beyond the plain protocol that a kvpeer announces, by their key in the `kvpeer` map. */
export const FEATURES = [
  'round_seq',
  'ttl_ms',
  'lookup_seq',
  'packed_keys',
  'scratch_page',
  'checksums',
  'partial_fetch',
  'speculative_fetch',
] as const;

/**
 * * `round_seq`: `lookup_resp` carries the round it answers, so an old answer cannot mark a newer probe.
 * * `ttl_ms`: `lookup` and `fetch` say how long their answer is wanted.
 * * `lookup_seq`: `lookup` has a number, and its answer repeats that instead of the keys: a tenth of the bytes.
 * * `packed_keys`: `keys` of `lookup` and `fetch` may be one bin of `count * keyBytes` bytes, keys back to back, instead
 *   of a list of bins: it says where every key is without a look at any of them. Used between peers with one key length.
 * * `checksums`: `transfer_done` carries a checksum per block of its fetch, so that the consumer can tell damaged ones.
 * * `partial_fetch`: `transfer_done` of a fetch of which only some blocks could be written says which.
 * * `speculative_fetch`: a `fetch` may ask for what is held now, without a lookup before; answered as a partial one.
 * * `scratch_page`: a 4096-byte page behind the last block may be written, to wire a connection up before use.
 */
export type Feature = (typeof FEATURES)[number];

/** Version of the extensions this code speaks; both sides use the lower one. */
export const WIRE_VERSION = 1;

/** Which run of which process a peer is. Two runs at one address never have the same. */
export interface Incarnation {
  /** Random, 1 to 64 bytes of UTF-8. */
  readonly id: string;
  /** Process number on its host, 1 to 2^31 - 1. */
  readonly pid: number;
  /** Start of the process in clock ticks since boot: field 22 of /proc/PID/stat. */
  readonly startTime: number;
  /** /proc/sys/kernel/random/boot_id: tells whether the peer runs on this host, and on this boot of it. */
  readonly bootId: string;
}

/**
 * The `kvpeer` map of `connect`:
 * `{ version, incarnation: { id, pid, start_time, boot_id }, key_bytes, FEATURE: true, ... }`.
 */
export interface KvpeerAnnouncement {
  readonly version: number;
  readonly incarnation: Incarnation;
  /** Length of the sender's keys; undefined where it does not say. */
  readonly keyBytes?: number | undefined;
  readonly features: readonly Feature[];
}

/** Both sides, once, the first message of a connection. */
export interface ConnectMessage {
  readonly type: 'connect';
  /** Sender's own `host:port`. Not used: a session is known by its ZeroMQ identity. */
  readonly peerId: string;
  /** The sender's NIXL metadata, opaque here, 0 to 65,536 bytes; a copy. Damaged ones can crash NIXL's loader. */
  readonly agentMetadata: Buffer;
  /** Address of block 0 in the sender's process. `baseAddr + numBlocks * blockLen` is below 2^53. */
  readonly baseAddr: number;
  /** 1 to 2^31 - 1. */
  readonly numBlocks: number;
  /** Bytes per block, above 0; the session requires its own value. */
  readonly blockLen: number;
  /** Empty: no opinion. On the wire optional; absent, nil, and other empty or false values count as empty. */
  readonly configFingerprint: string;
  /** The seed of the hash chain; the session requires its own value. */
  readonly hashSeed: string;
  /** Extension. Undefined for a plain vLLM peer. */
  readonly kvpeer: KvpeerAnnouncement | undefined;
}

/** Answer to a valid `connect`, once the sender's data plane knows the peer. A repeated one is harmless. */
export interface ConnectAckMessage {
  readonly type: 'connect_ack';
  /** Sender's own `host:port`, not used. */
  readonly peerId: string;
}

/** Either side, best effort: the session is over. */
export interface DisconnectMessage {
  readonly type: 'disconnect';
}

/** Consumer to producer: which of these keys do you hold? An empty list gets no answer. */
export interface LookupMessage {
  readonly type: 'lookup';
  readonly kvRequestId: string;
  /** Duplicates are legal. */
  readonly keys: KeyList;
  readonly roundSeq: number;
  /** Extension: milliseconds after which the answer is of no use. */
  readonly ttlMs: number | undefined;
  /** Extension: the sender's number for this lookup, unique in the session. The answer has it instead of keys. */
  readonly lookupSeq: number | undefined;
}

/** Producer to consumer: one answer per lookup, in the order of the request, duplicates kept. */
export interface LookupRespMessage {
  readonly type: 'lookup_resp';
  readonly kvRequestId: string;
  /** Empty when `lookupSeq` says which keys are meant. */
  readonly keys: KeyList;
  /** {@link HIT} or {@link MISS} for each key; a view of the message. */
  readonly hits: Uint8Array;
  /** Extension: the round that is answered. */
  readonly roundSeq: number | undefined;
  /** Extension: the lookup that is answered. */
  readonly lookupSeq: number | undefined;
}

/**
 * Consumer to producer: write these blocks into these slots of mine, which closes the lookups of the round.
 * Without keys: the request is finished, release what is held for it; no answer.
 */
export interface FetchMessage {
  readonly type: 'fetch';
  readonly kvRequestId: string;
  readonly keys: KeyList;
  /**
   * Slot for each key, in the consumer's numbering; not yet compared with its `num_blocks`. One above
   * {@link MAX_BLOCK_INDEX} is {@link INDEX_OVER_RANGE}, counted in `overRangeCount`; the answer to such a fetch is
   * `transfer_done(false)`. (A negative one, or one that is no integer, is a protocol error.)
   */
  readonly blockIndexes: Int32Array;
  readonly overRangeCount: number;
  readonly roundSeq: number;
  /** Extension: milliseconds after which the blocks are of no use. */
  readonly ttlMs: number | undefined;
  /** Extension: write what is held now, wait for nothing. */
  readonly ifHeld: boolean;
}

/** Producer to consumer: a fetch that named keys has ended, once. `success`: every block was written. */
export interface TransferDoneMessage {
  readonly type: 'transfer_done';
  readonly kvRequestId: string;
  readonly success: boolean;
  readonly roundSeq: number;
  /**
   * Extension, with `success` false: which blocks of the fetch were written, see shared/bitmap.ts. Absent: none that may be
   * used. A view of the message, of any length: only the fetch's sender knows which one is right.
   */
  readonly written: Uint8Array | undefined;
  /**
   * Extension: 8 bytes for each key of the fetch whose block was written, in its order: the checksum of the block as the
   * producer stored it (XXH3 class, see native/core/block_bytes.h), 0 where it has none. A view of the message.
   */
  readonly checksums: Uint8Array | undefined;
}

/** Consumer to producer: this round is not wanted any more. */
export interface AbortFetchMessage {
  readonly type: 'abort_fetch';
  readonly kvRequestId: string;
  readonly roundSeq: number;
}

/** Producer to consumer: no write of this round can land any more; also for a round nobody knows. */
export interface AbortAckMessage {
  readonly type: 'abort_ack';
  readonly kvRequestId: string;
  readonly roundSeq: number;
}

export type IncomingMessage =
  | ConnectMessage
  | ConnectAckMessage
  | DisconnectMessage
  | LookupMessage
  | LookupRespMessage
  | FetchMessage
  | TransferDoneMessage
  | AbortFetchMessage
  | AbortAckMessage;

/** Why a payload is no message, and what follows. Used as the label `reason` of `kvpeer_rejections_total`. */
export const REJECTION_OUTCOMES = {
  /** Truncated, bytes behind the map, a byte that is not msgpack, text that is not UTF-8. */
  undecodable: 'drop',
  /** Nested deeper, or made of more values, than any message needs. */
  too_complex: 'drop',
  /** Decodes to something else than a map. */
  not_a_map: 'ignore',
  /** `type` is missing, no string, or none of {@link MESSAGE_TYPES}; a later version may know it. */
  unknown_type: 'ignore',
  /** A field of a known message is missing or breaks its rule. */
  invalid_field: 'end-session',
  /** A field, a list or the message is larger than {@link ProtocolLimits} allows. */
  over_limit: 'end-session',
} as const;

export type RejectionReason = keyof typeof REJECTION_OUTCOMES;

/** `drop` and `ignore`: the session goes on. `end-session`: a protocol error; `disconnect` is sent where allowed. */
export type RejectionOutcome = (typeof REJECTION_OUTCOMES)[RejectionReason];

/** A payload that is no message. `detail` names the field, the rule and what was found; it never quotes contents. */
export interface Rejection {
  readonly type: 'rejected';
  readonly reason: RejectionReason;
  readonly outcome: RejectionOutcome;
  readonly detail: string;
  /** Known when the payload says it, for a faulty `connect` is treated differently from other faulty messages. */
  readonly messageType: MessageType | undefined;
}

/** Result of a scan; `type` tells which. */
export type ScanResult = IncomingMessage | Rejection;
