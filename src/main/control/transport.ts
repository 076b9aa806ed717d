// The contract of the control transport: frames between this node and others, by address. Knows nothing of KV.
//
//          node A, advertised as a:5710                     node B, advertised as b:5710
//      +------------------------------------+           +------------------------------------+
//      |  ROUTER, bound, receives only  <---|-- TCP 2 --|---  DEALER for a:5710, sends only  |
//      |                                    |           |       (routing id "b:5710")        |
//      |  DEALER for b:5710, sends only  ---|-- TCP 1 --|-->  ROUTER, bound, receives only   |
//      |    (routing id "a:5710")           |           |                                    |
//      +------------------------------------+           +------------------------------------+
//
// Two connections per pair, one a direction, as vLLM has it. A frame is one ZeroMQ message of one part; the ROUTER
// puts the sender's routing id in front. A routing id is the address at which its owner can be called back.
//
// * The transport never dials by itself: whoever holds a frame from an unknown address decides (admission.ts), and
//   calls `openDealer`. So strangers cannot make this node open sockets.
// * A DEALER whose connection ended, or was refused, is dead for good; libzmq's own reconnection is off, since it
//   would deliver frames of an old session to a new process. A new session opens a new DEALER.
// * Heartbeats go from DEALERs to ROUTERs. A ROUTER of ours answers them but sends none: in libzmq 4.3.5 a heartbeat
//   timer that fires on a connection which is both throttled and broken aborts the process ("Assertion failed:
//   !_io_error", libzmq issue 4364; any remote can bring it about, and did here). So does a heartbeat of the remote
//   that is read late, after such a break: the ROUTER's receive queue has no bound and never throttles. A silent remote is noticed at the
//   ROUTER through the time-to-live in its own heartbeats, and at our DEALER through its missing answers.
// * A new connection under an identity takes it over (ROUTER_HANDOVER): a restarted peer is heard at once, although
//   the death of its former self may not have been noticed yet.

import { DEFAULT_LIMITS } from '../protocol/limits.js';
import type { FetchMessage, LookupMessage } from '../protocol/messages.js';
import type { NumberedAnswer } from '../protocol/write.js';

/** Host and port as they appear in an identity; IPv6 literals are bracketed there and bare here. */
export interface PeerAddress {
  readonly host: string;
  readonly port: number;
}

/** Why something that arrived at the ROUTER was thrown away. Label `reason` of `kvpeer_rejections_total`. */
export const TRANSPORT_REJECTIONS = [
  /** Routing id is no UTF-8, has no colon, no legal port or host, is a wildcard, or is longer than 255 bytes. */
  'bad_identity',
  /** More than one part. */
  'frame_count',
] as const;

export type TransportRejection = (typeof TRANSPORT_REJECTIONS)[number];

/** What the transport reports. Handlers run on the event loop and must not throw; one that does ends the process. */
export interface ControlHandlers {
  /**
   * A frame arrived. `from` is the canonical `host:port` of the sender's identity, validated but not authenticated.
   * `payload` belongs to the handler.
   */
  readonly onMessage: (from: string, payload: Buffer) => void;
  /**
   * A `lookup`, or a `fetch` without keys, of the usual form arrived: the receiver has read it natively. The message of a
   * lookup is kept until its keys are given back. `payloadBytes` is its length. Every other form comes to `onMessage`.
   */
  readonly onRead: (from: string, message: LookupMessage | FetchMessage, payloadBytes: number) => void;
  /** Runs the reading of all messages that have arrived. Default: as it is. */
  readonly aroundReceive?: (receive: () => void) => void;
  /**
   * The connection under that identity ended: closed, reset, silent for longer than the time-to-live its own
   * heartbeats announced, or cut because it sent a frame beyond `maxFrameBytes`. Not reported for a connection whose identity was taken over by a newer one, nor
   * where libzmq lacks the option it needs (see `reportsPeerGone`).
   */
  readonly onPeerGone: (from: string) => void;
  /** Something was thrown away; counted by the caller. `detail` is short and printable. */
  readonly onRejected: (reason: TransportRejection, detail: string) => void;
}

/** Why a DEALER is dead. */
export type DownCause =
  /** Nobody listens there (or no route to there). */
  | 'refused'
  /** The host name has no address. */
  | 'unresolved'
  /** Our own advertised address is a loopback one and the remote is on another host: it could never call back. */
  | 'not-advertisable'
  /** The remote does not speak ZMTP, or wants a security mechanism. */
  | 'handshake-failed'
  /** Was connected; ended from the other side, or silent for `heartbeatTimeoutMs`. */
  | 'disconnected'
  /** The remote sent something on a connection that only we send on. */
  | 'unexpected-frame'
  /** ZeroMQ gave no socket, or refused a frame. */
  | 'send-failed';

export interface DealerEvents {
  /** The ZMTP handshake is complete. Nothing needs to wait for it: frames sent before are queued. */
  readonly onConnected?: () => void;
  /** Once, never after `close()`, and never from within `openDealer` or `send`. */
  readonly onDown: (cause: DownCause) => void;
}

/** The sending half of a session: one DEALER towards one address. */
export interface DealerHandle {
  readonly address: string;
  readonly isConnected: boolean;
  /** Frames and bytes that wait for ZeroMQ to take them. */
  readonly queuedFrames: number;
  readonly queuedBytes: number;
  /**
   * Sends or queues a frame; never blocks, never throws. One that was queued must not be changed afterwards, and nobody
   * is told which: leave them all alone.
   *
   * @returns false when the queue is full, or the handle is down or closed: the frame is dropped and the session
   *          should die with "send failed"
   */
  send(frame: Buffer): boolean;
  /** As send() of writeLookupResp() with these values, without a frame of its own in the usual case. `hits` is copied. */
  sendAnswer(answer: NumberedAnswer): boolean;
  /**
   * Stops taking frames, gives those that are queued up to `lingerMs` to leave, then closes. Settles when the connection
   * is gone; idempotent.
   */
  close(): Promise<void>;
}

export interface ControlTransport {
  /**
   * Binds the ROUTER and begins to receive.
   *
   * @returns the bound address (with the real port when 0 was asked for)
   * @throws KVPEER_BIND naming address, reason and remedy
   */
  bind(): Promise<PeerAddress>;
  /** This node's routing id and `peer_id`: the advertised `host:port`. Throws before `bind` has settled. */
  readonly localAddress: string;
  /** Whether `onPeerGone` works with this libzmq. */
  readonly reportsPeerGone: boolean;
  /** Open ZeroMQ sockets of this transport: the ROUTER and the DEALERs. */
  readonly socketCount: number;
  /**
   * Opens a DEALER towards a peer. Only for an address that a complete, valid `connect` came from, or that the local
   * operator or request named. While an earlier handle for the address still closes, the new one waits and takes frames.
   *
   * @throws KVPEER_INVALID_ARGUMENT when the address is not a legal identity
   * @throws KVPEER_CLOSED after `close()`
   */
  openDealer(address: string, events: DealerEvents): DealerHandle;
  /** Stops receiving, closes every DEALER as its `close()` does, then the ROUTER. Idempotent. */
  close(): Promise<void>;
}

/** Settings of the transport. */
export interface ControlOptions {
  /** Address to bind, e.g. `10.0.0.1`, `0.0.0.0`, `::1`. */
  readonly bindHost: string;
  /** 0 takes a free port. */
  readonly bindPort: number;
  /** Host that others use to call back. Defaults to `bindHost`, which then must not be a wildcard. */
  readonly advertiseHost?: string;
  /** Port that others use to call back. Defaults to the bound port. */
  readonly advertisePort?: number;
  readonly heartbeatMs: number;
  /** Also the time-to-live told to the other side. */
  readonly heartbeatTimeoutMs: number;
  /** Time a closing DEALER stays open for its last frames; none when its last frame is older than that. */
  readonly lingerMs: number;
  /** Longest frame received; the sender of a longer one is disconnected by libzmq. */
  readonly maxFrameBytes: number;
  /** ZeroMQ's own send queue per DEALER, in frames. */
  readonly sendHighWaterMark: number;
  /** Bound of our queue per DEALER, in front of ZeroMQ's. */
  readonly queueFrames: number;
  readonly queueBytes: number;
  /** Lookups whose keys have this length, with at most so many keys, are read natively. */
  readonly keyBytes: number;
  readonly maxKeys: number;
  readonly maxStringBytes: number;
  /** Frames handled before the event loop gets a turn, and milliseconds spent on them: a long list takes one alone. */
  readonly receiveBatch: number;
  readonly receiveTurnMs: number;
}

export const DEFAULT_CONTROL_OPTIONS = {
  heartbeatMs: 2_000,
  heartbeatTimeoutMs: 10_000,
  lingerMs: 100,
  maxFrameBytes: 8 * 1024 * 1024,
  sendHighWaterMark: 1_000,
  queueFrames: 4_096,
  queueBytes: 64 * 1024 * 1024,
  keyBytes: DEFAULT_LIMITS.keyBytes,
  maxKeys: DEFAULT_LIMITS.keyCount,
  maxStringBytes: DEFAULT_LIMITS.stringBytes,
  receiveBatch: 64,
  receiveTurnMs: 2,
} as const;
