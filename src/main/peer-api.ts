// The public API of a peer, as types: what an engine, a sidecar or the replay command may ask of one node.

import type { Registry } from 'prom-client';

import type { ExtraKey } from './events/payload.js';
import type { Readiness } from './observe/health.js';
import type { PeerOptions } from './options.js';
import type { Tier } from './tier-api.js';

/** Packed keys: `count * keyBytes` bytes. Borrowed until the promise settles. */
export type PackedKeys = Uint8Array;

/** What a lookup found, in the order of the keys. */
export interface Hits {
  readonly count: number;
  readonly hitCount: number;
  /** Number of hits before the first miss: what a prefix cache can use. */
  readonly leadingCount: number;
  /** One bit per key, least significant bit first: 1 = hit, here or at the source. */
  readonly bitmap: Uint8Array;
  has(index: number): boolean;
}

/** Blocks that are pinned here; every view is borrowed until release(). */
export interface PinnedBlocks {
  readonly count: number;
  /** Slot per key, -1 where the block is not here. */
  readonly slots: Int32Array;
  readonly presentCount: number;
  /** The bytes of the block in the pool (a view of shared memory), or undefined where it is not here. */
  block(index: number): Uint8Array | undefined;
  /** Exactly once; a second call throws. */
  release(): void;
}

export interface Load extends PinnedBlocks {
  /** Blocks that came over the wire for this load; the others were here or came with another load. */
  readonly pulledCount: number;
  readonly bytesPulled: number;
}

/** Slots to write into before commit(). A key that is here already, or that another writer has in hand, has no slot. */
export interface Reservation {
  readonly count: number;
  readonly slots: Int32Array;
  /** Where to write the block, or undefined where nothing is to be written. */
  block(index: number): Uint8Array | undefined;
  /** Every block of the reservation is complete: they become visible. */
  commit(): Promise<StoreResult>;
  /** Nothing becomes visible; the slots are free again. */
  cancel(): Promise<void>;
}

export interface StoreResult {
  /** Blocks written now. */
  readonly storedCount: number;
  /** Blocks that were here already (they count as stored by the request). */
  readonly presentCount: number;
  /** Blocks without a slot: the pool is full of pinned, written or quarantined blocks. */
  readonly notStoredCount: number;
}

/** The end of a handshake. */
export type Connection =
  | { readonly isReady: true }
  /** Why there is no session: `refused`, `handshake-timeout`, `mismatch` and the like; the log has the details. */
  | { readonly isReady: false; readonly reason: string };

export interface LoadRequest {
  /** Overwrite the slots before the blocks come (replay does, to see that all bytes were written). */
  readonly poison?: boolean;
  /**
   * `held`: there was no lookup, and there is reason to expect that a source holds the blocks (a router said so). They are
   * fetched at once, in one round trip, from a source that can answer that; another one is asked first. What a source
   * does not hold is a miss. Slots are reserved for all the keys, so this is not for guesses that mostly fail. Without
   * it, blocks come only from sources that a lookup of this request has found them at.
   */
  readonly expect?: 'held';
  /** Blocks are on their way: their slots are reserved, the first fetch has been sent. */
  readonly onStarted?: () => void;
}

/** One engine request. Not safe for concurrent load() of the same keys; lookups and loads of different keys may overlap. */
export interface PeerRequest {
  /** The consumer id (remote_prefiller or remote_kv_source), allocated when it was absent. */
  readonly kvRequestId: string | undefined;
  lookup(keys: PackedKeys): Promise<Hits>;
  /** Pulls what the caller names; what fails is a miss (slot -1), never an error. */
  load(keys: PackedKeys, options?: LoadRequest): Promise<Load>;
  /** Blocks back to back, `count * blockBytes` bytes; held for the remote decoder when opened with `remote_decoder`. */
  store(keys: PackedKeys, blocks: Uint8Array): Promise<StoreResult>;
  reserve(keys: PackedKeys): Promise<Reservation>;
  /** No more will come: unmet demand fails at once, unfetched blocks stay `unclaimedStoreMs`. Idempotent. */
  finish(): void;
}

/** Deterministic block contents for tests and replay: bytes that are a function of the key, made and checked off the main thread. */
export interface ContentTools {
  /** Stores the blocks of these keys with the content that belongs to them. */
  storeFilled(keys: PackedKeys): Promise<StoreResult>;
  /** How many of the pinned blocks differ from the content of their key. */
  verify(pinned: PinnedBlocks): Promise<number>;
}

export interface PeerStats {
  readonly slots: {
    readonly free: number;
    readonly writing: number;
    readonly ready: number;
    readonly quarantined: number;
  };
  readonly pins: number;
  readonly leases: number;
  readonly sessions: Readonly<Record<string, number>>;
  readonly nixlPeers: number;
  readonly sockets: number;
  readonly evictions: number;
  readonly bytesServed: number;
  readonly bytesPulled: number;
  readonly served: {
    readonly posts: number;
    readonly cut: number;
    readonly failed: number;
    /** Sum over the serves, from the first post to the last completion. */
    readonly writeMs: number;
  };
  readonly workerRestarts: number;
  readonly hardStops: number;
  readonly receiveAgentRecycles: number;
}

/** What may come with the params of a request. */
export interface OpenOptions {
  /**
   * The `kv_hints` envelope of a KV router: JSON text (string or bytes), or parsed with integers beyond 2^53 as bigint
   * (`parseHintsJson`). Fetches become sources that are asked only for the keys they were named for; params that name
   * a peer win. What cannot be used is ignored and counted (`kvpeer_hints_ignored_total`), never thrown.
   */
  readonly kvHints?: unknown;
  /** Which endpoints a hint may name. Default: all, as for kv_transfer_params. */
  readonly allowsHint?: (host: string, port: number) => boolean;
}

/** What blocks hold. The keys it goes with are in the order of a prompt, each the parent of the next. */
export interface BlockDescription {
  /** Back to back, `tokensPerBlock` for each key. */
  readonly tokenIds: ArrayLike<number>;
  readonly tokensPerBlock: number;
  /** Key of the block before the first; absent at the start of a prompt. */
  readonly parent?: Uint8Array | undefined;
  readonly loraName?: string | undefined;
  /** Per block what further went into its hash (multi-modal identifiers, a cache salt). */
  readonly extraKeys?: readonly (readonly ExtraKey[] | undefined)[] | undefined;
}

/** Where KV events are published. */
export interface KvEventPorts {
  readonly port: number;
  readonly replayPort: number | undefined;
}

/** A running node. Made by `Peer.start(options)`. */
export interface PeerApi {
  /** host:port that other peers dial. */
  readonly address: string;
  readonly numBlocks: number;
  readonly blockBytes: number;
  readonly keyBytes: number;
  readonly shardCount: number;
  /** Seed of the engines' block hashes. */
  readonly hashSeed: string;
  readonly dataPlane: {
    readonly name: 'nixl' | 'none';
    readonly version: string;
    readonly transports: string;
  };
  /** @throws KVPEER_INVALID_PARAMS on an illegal combination, naming the keys. */
  open(kvTransferParams?: unknown, options?: OpenOptions): PeerRequest;
  /** Shakes hands with a peer (`host:port`) ahead of the requests that will name it. Never rejects for the peer's sake. */
  connect(address: string): Promise<Connection>;
  store(keys: PackedKeys, blocks: Uint8Array): Promise<StoreResult>;
  reserve(keys: PackedKeys): Promise<Reservation>;
  /** Keeps blocks regardless of eviction. */
  pin(keys: PackedKeys): Promise<PinnedBlocks>;
  /** Which of the keys are here now; nothing is pinned. */
  probe(keys: PackedKeys): Promise<Hits>;
  evict(keys: PackedKeys): Promise<number>;
  /**
   * Tells what blocks hold, before or after they are stored or pulled: with it they are announced in KV events. Without
   * KV events it does nothing. Descriptions of blocks that are not here are kept up to a bound.
   *
   * @throws KVPEER_INVALID_ARGUMENT
   */
  describe(keys: PackedKeys, description: BlockDescription): void;
  /** Undefined when no KV events are published. */
  readonly kvEvents: KvEventPorts | undefined;
  readonly content: ContentTools;
  /** The step-driven form for engines that poll. */
  readonly tier: Tier;
  stats(): PeerStats;
  /** The metrics of design.md section 11, to be served or merged with others (observe/metrics.ts makes it). */
  readonly metrics: Registry;
  /** Whether the node can do its work now: what /readyz answers. */
  readiness(): Readiness;
  /** Drains, tells peers, unmaps. Idempotent. */
  close(options?: { readonly drainMs?: number }): Promise<void>;
}

/** The static side. */
export interface PeerStarter {
  start(options?: PeerOptions): Promise<PeerApi>;
}
