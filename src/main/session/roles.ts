// The contracts inside a session: what a role may use, what it is told, and what the node shares between sessions.
//
//                        Sessions (all peers, back-off, admission)         session/sessions.ts
//                             |  one per remote peer incarnation
//                          Session (handshake, routes events)              session/session.ts, handshake.ts
//              +--------------+--------------+
//          ConsumerRole                  ProducerRole                      session/consumer.ts, producer.ts
//              |                             |
//       Quarantine, Joins           DecoderRequests, PinBudget             shared by all sessions of the node
//
// Roles are pure: time, sending and the shards are injected; nothing here touches a socket, a thread or a timer.

import type {
  AbortAckMessage,
  AbortFetchMessage,
  Feature,
  FetchMessage,
  LookupMessage,
  LookupRespMessage,
  TransferDoneMessage,
} from '../protocol/messages.js';
import type { NumberedAnswer } from '../protocol/write.js';
import type { DataPeer, KeySpan, ShardClient, SlotSet } from '../shards/shard-client.js';

/** Every time of design.md section 6 rule 4 that a session uses, in milliseconds. */
export interface SessionTimes {
  readonly handshakeMs: number;
  readonly suspectedHandshakeMs: number;
  readonly redialMs: number;
  readonly lookupMs: number;
  readonly holdMs: number;
  readonly leaseMs: number;
  readonly loadMs: number;
  readonly abortAckMs: number;
  readonly storeMs: number;
  readonly unclaimedStoreMs: number;
  readonly rememberedMs: number;
  readonly backoffMinMs: number;
  readonly backoffMaxMs: number;
  readonly plainPostMs: number;
  readonly plainAbortMs: number;
  readonly plainStopMs: number;
  readonly quarantineMaxMs: number;
}

export interface SessionLimits {
  readonly maxKeys: number;
  readonly maxPeers: number;
  /** Open rounds per peer. */
  readonly maxRounds: number;
  /** Share of the pool's slots that the lookup leases of one peer may pin, each slot counted once. */
  readonly peerPinShare: number;
}

/** Why something was refused, missed or ended; the labels of the counters. A closed set, so that labels stay bounded. */
export type MissReason =
  | 'busy'
  | 'pin-cap'
  | 'hold-expired'
  | 'foreign-key'
  | 'worker-lost'
  | 'lookup-deadline'
  | 'load-deadline'
  | 'load-failed'
  | 'peer-down'
  | 'peer-backoff'
  | 'no-slot'
  | 'joined-failed'
  | 'checksum'
  /** The source wrote the other blocks of the fetch: it did not hold this one any more. */
  | 'not-held'
  /** The caller gave up, or its request ended. */
  | 'cancelled'
  /** More keys than one message may name. */
  | 'over-limit';

/** Counters of the session layer; plain numbers, read by observe/metrics. */
export interface SessionCounters {
  rejection(reason: string): void;
  miss(reason: MissReason, keyCount: number): void;
  hardStop(): void;
  bytesServed(bytes: number): void;
  bytesPulled(bytes: number): void;
  lookupSeconds(seconds: number): void;
  loadSeconds(seconds: number): void;
  serveSeconds(seconds: number): void;
  /** A message that has no meaning in this state and is allowed to arrive (late, repeated): ignored and counted. */
  ignored(type: string): void;
}

/** The part of pino that roles use. */
export interface RoleLog {
  debug(fields: object, message: string): void;
  info(fields: object, message: string): void;
  warn(fields: object, message: string): void;
}

/** What the handshake learned about the other side. Present from the valid `connect` on. */
export interface RemotePeer {
  /** It announced the `kvpeer` map and so do we: extensions may be used. */
  readonly isKvpeer: boolean;
  /** Extensions that both sides announced: these may be sent. */
  readonly features: ReadonlySet<Feature>;
  readonly numBlocks: number;
  /** Registered with the data plane; undefined with --data-plane none. */
  readonly dataPeer: DataPeer | undefined;
}

/** Everything a role may do. Injected; a unit test records `send` and drives `now`. */
export interface RoleContext {
  readonly address: string;
  readonly times: SessionTimes;
  readonly limits: SessionLimits;
  readonly counters: SessionCounters;
  readonly log: RoleLog;
  readonly shards: ShardClient;
  /** Monotonic milliseconds. */
  now(): number;
  /** Queue a frame for the peer. After the session's end it is dropped. Never throws, never ends the session inside. */
  send(frame: Buffer): void;
  /** The same for a `lookup_resp` that names its lookup. `hits` is copied. */
  sendAnswer(answer: NumberedAnswer): void;
  /** Takes back a frame that waits for the peer's acknowledgement: true if it has not left and never will. */
  recall(frame: Buffer): boolean;
  /** tick() shall be called at or soon after this time. */
  wakeAt(timeMs: number): void;
  /** The peer broke the protocol: counted, logged, `disconnect` sent, session ended (the roles' end() is called later, not inside). */
  protocolError(detail: string): void;
  /** Undefined until the data plane has registered the peer. */
  remote(): RemotePeer | undefined;
  /** Whether frames have ever left this session towards the peer's roles: it acknowledged us. */
  hasSent(): boolean;
  /** Under which identity the peer writes here; undefined until its `connect` was accepted. */
  writer(): WriterIdentity | undefined;
}

/**
 * The producer half: answers lookups, serves fetches, acknowledges aborts (design.md section 6, table of leases).
 * Its leases are per session and internal; nothing here knows the consumer half.
 */
export interface ProducerRole {
  onLookup(message: LookupMessage): void;
  onFetch(message: FetchMessage): void;
  onAbortFetch(message: AbortFetchMessage): void;
  /** A PUBLISH or ABANDON completed somewhere in the node: parked lookups and parked fetches may look again. */
  onSettled(set: SlotSet): void;
  /** Blocks of a `remote_decoder` id became READY: demand that waits for the id looks again at once. */
  onDecoderStored(kvRequestId: string): void;
  /** The local request of a `remote_decoder` id ended, or its id was reaped: demand that is still unmet fails now. */
  onDecoderFinished(kvRequestId: string): void;
  /** Also to be called after end(), until isDrained(). */
  tick(nowMs: number): void;
  /** The session is over, for whatever reason. Leases go; unfinished writes are handled as rules 2 and 9 say. */
  end(): void;
  /** True once end() was called and nothing of this session can be written any more (all serves ended or stopped). */
  isDrained(): boolean;
  /** Called once when isDrained() becomes true; inside end() when nothing was under way. */
  onDrained: () => void;
  stats(): {
    readonly leaseCount: number;
    readonly leasePinCount: number;
    readonly parkedCount: number;
    readonly serveCount: number;
  };
}

/** What a lookup found. `statuses[i]` is 0xc3 for a hit and 0xc2 for a miss (msgpack true and false). */
export interface LookupResult {
  readonly statuses: Uint8Array;
  readonly hitCount: number;
  /** Set when the answer is not the peer's: every key not answered before is a miss for this reason. */
  readonly reason?: MissReason;
}

/** What a load brought. Blocks can be read in `slots` until every set of `pins` is released by the caller. */
export interface LoadResult {
  /** Slot per key, -1 where the block did not come. */
  readonly slots: Int32Array;
  readonly pins: readonly SlotSet[];
  readonly loadedCount: number;
  /** Blocks that came over the wire for this load (not joined, not present before). */
  readonly pulledCount: number;
  readonly reason?: MissReason;
}

/**
 * The consumer half: lookups and loads of this node at this peer. One entry per kv_request_id; its rounds never go back,
 * not in a later session either (they are remembered for `rememberedMs` after the last use, see rounds.ts).
 */
export interface ConsumerRole {
  /** Sends one `lookup` for the id's current round. `keys` is packed and borrowed until done. Empty: done at once. */
  lookup(kvRequestId: string, keys: KeySpan, done: (result: LookupResult) => void): void;
  /**
   * Reserves, fetches, publishes. `keys` borrowed until done. Ends within load deadline in exactly one result. Lookups of
   * the id that have no answer when the fetch leaves are asked again in the next round.
   */
  load(kvRequestId: string, keys: KeySpan, options: LoadOptions, done: (result: LoadResult) => void): void;
  /** The round is not wanted: released at once with abort_fetch; later lookups of the id use the next round. */
  giveUpRound(kvRequestId: string): void;
  /** The request ended: loads are aborted (what did not come is a miss), an open round is closed with the empty fetch. */
  finish(kvRequestId: string): void;
  onLookupResp(message: LookupRespMessage): void;
  onTransferDone(message: TransferDoneMessage): void;
  onAbortAck(message: AbortAckMessage): void;
  tick(nowMs: number): void;
  /** Every open lookup and load ends as a miss; slots that a remote write may still reach go to the quarantine. */
  end(): void;
  stats(): { readonly idCount: number; readonly openLookupCount: number; readonly openLoadCount: number };
}

export interface LoadOptions {
  /** Run after the slots are reserved and before the fetch is sent (replay poisons them here). */
  readonly beforeFetch?: (set: SlotSet, proceed: () => void) => void;
  /** The fetch has been sent. */
  readonly onFetch?: (() => void) | undefined;
  /** No lookup says that the peer holds the blocks: what it does not hold is a miss. For `speculative_fetch` only. */
  readonly ifHeld?: boolean;
}

/** Who may still write to quarantined slots: a peer, by address and by what tells one run of it from another. */
export interface WriterIdentity {
  readonly address: string;
  /** Of the `kvpeer` map; undefined for a plain peer. */
  readonly incarnation: string | undefined;
  /** NIXL agent name in the peer's metadata, as far as it can be told; a plain peer's identity. Empty: not known. */
  readonly agentName: string;
  /** A stopped process of this host may go on writing by CMA when it is continued, whatever we do to our agent. */
  readonly isOnThisHost: boolean;
  /** Same host and pid namespace: the process whose exit ends the quarantine. */
  readonly process: { readonly pid: number; readonly startTime: number } | undefined;
}

/** A round of one session. Two sessions with one peer never mean the same round, whatever its number. */
export interface RoundKey {
  /** Any object that is one per session. */
  readonly session: object;
  readonly kvRequestId: string;
  readonly round: number;
}

/** Slots that a remote write may still reach (design.md section 6 rule 2). Shared by all sessions of the node. */
export interface Quarantine {
  /** The set's Reserved positions become QUARANTINED and stay so until one of rule 2's events. */
  add(set: SlotSet, writer: WriterIdentity, round: RoundKey): void;
  /** transfer_done or abort_ack of the round, on the session that fetched it. False: nothing waited for it. */
  onRoundEnded(round: RoundKey): boolean;
  /** A valid `connect` of a new session came from the address. */
  onConnect(writer: WriterIdentity): void;
  /** The receive agent was recycled: everything goes, but what a stopped same-host CMA writer may still reach. */
  onRecycled(): void;
  readonly slotCount: number;
  /** Time the oldest entry was added, or undefined. */
  readonly oldestMs: number | undefined;
}

/** Waits for slots that another load or store is writing. Fed by ShardClient.onSettled. */
export interface Joins {
  /** `done` once every Pending position of the set has settled (published or abandoned), or at the deadline. */
  waitSettled(set: SlotSet, deadlineMs: number, done: () => void): void;
}

/** `remote_decoder` ids of this node: stored blocks are pinned for the id until fetched, the limit, or the end. */
export interface DecoderRequests {
  /** A local request with this id begins. */
  open(kvRequestId: string): void;
  /** Blocks of the request became READY; `set` holds their pins, owned by the id from here on. */
  addStored(kvRequestId: string, set: SlotSet): void;
  /** No more will be stored. Unmet demand fails at once; unfetched blocks stay `unclaimedStoreMs`. */
  finish(kvRequestId: string): void;
  /** open: more may come. finished: nothing more comes, blocks may be held. reaped: went within `rememberedMs`. */
  state(kvRequestId: string): 'open' | 'finished' | 'reaped' | 'unknown';
  /** A fetch for the id completed: its pins go. */
  onFetched(kvRequestId: string): void;
  tick(nowMs: number): void;
  /** To be handed to every session's producer (onDecoderStored). */
  onStored: (kvRequestId: string) => void;
  /** finish() was called or the id was reaped. To be handed to every session's producer (onDecoderFinished). */
  onEnded: (kvRequestId: string) => void;
  readonly pinnedCount: number;
}

/**
 * Slots that lookups of remote peers pin: at most `peerPinShare` of the pool for one peer, each slot counted once, and
 * half the pool for all of them together, so that local stores always go on.
 */
export interface PinBudget {
  /** Most different slots that the lookups of one peer may pin. */
  readonly peerLimit: number;
  /** What all peers are charged with, in slots. */
  readonly total: number;
  /** One for each session. */
  openAccount(): PinAccount;
}

/**
 * What one peer is charged with: an upper bound of the different slots it pins, kept without looking at slots. Pins
 * are reserved before a match is asked for, so that matches in flight cannot together exceed what each was allowed.
 */
export interface PinAccount {
  /**
   * The result of a match of `count` keys may be kept: it takes room in the request arena, hits or not, for as long as
   * it pins something. Without this limit one peer's long lookups could take the arena from everybody.
   */
  mayHold(count: number): boolean;
  /** A match of `count` keys cannot exceed a pin limit, whatever it finds. */
  fits(count: number): boolean;
  /** Most different slots this peer may pin now, those it pins already included. */
  readonly slotLimit: number;
  /**
   * It is the reservations of other peers' matches, which end within milliseconds, that leave less than this peer's own
   * limit. Calls back once when the next of them has been settled. False when that is not so.
   */
  waitForOthers(then: () => void): boolean;
  /** Before a match of `count` keys; `slotLimit` if the match is held to it. Returns what to pass to settle(). */
  reserve(count: number, slotLimit?: number): PinReservation;
  /**
   * After the match: `pinCount` pins were taken. Without any its result is not kept. Returns whether other peers wait for
   * it: they are called back in a microtask.
   */
  settle(reservation: PinReservation, pinCount: number): boolean;
  /** The result of a match of `keyCount` keys was given back, with at least one pin. */
  give(pinCount: number, keyCount: number): void;
  /** Pins held and reserved, duplicates included. */
  readonly useCount: number;
}

export interface PinReservation {
  readonly count: number;
  /** By how many slots the charge grew. */
  readonly charged: number;
}
