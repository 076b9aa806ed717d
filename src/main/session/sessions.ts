// All sessions of a node: who may have one, when a new one may begin, and who is left alone for a while.
//
//   acquire(address) ---- live session? yes -> it        no -> back-off? cap? -> refused, or dial
//   onMessage(from)  ---- live session? yes -> receive   no -> only a valid `connect` within the caps makes one
//
// A session that ended may still be draining (writes of ours under way): the next one with that address begins when
// it has gone, because our `connect` tells the peer that nothing of the earlier sessions can land any more. So do all
// new ones while the receive agent is being recycled.

import type { ConnectMessage, IncomingMessage } from '../protocol/messages.js';
import type { SlotSet } from '../shards/shard-client.js';
import { Backoff } from './backoff.js';
import type { EndCause, Mismatch } from './handshake.js';
import { FAULTY_CAUSES } from './handshake.js';
import { dropMessage } from '../protocol/message-memory.js';
import type { RoleLog, SessionLimits, WriterIdentity } from './roles.js';
import type { SessionEnvironment, SessionHooks } from './session.js';
import { Session } from './session.js';

/** Why there is no session for a request: its lookups and loads are misses. */
export type Refusal = 'backoff' | 'peer-cap' | 'closed' | 'self' | 'bad-address';

export interface SessionsOptions {
  readonly localAddress: string;
  readonly limits: SessionLimits;
  readonly log: RoleLog;
  readonly environment: Omit<SessionEnvironment, 'hooks' | 'isSuspected' | 'writerIdentity'>;
  /** Counted under the reason; see observe/metrics. */
  readonly countRejection: (reason: string) => void;
  readonly countMismatch: (mismatch: Mismatch) => void;
  readonly countIgnored: (messageType: string) => void;
  /** The identity under which a peer may write to this node, for the quarantine. Called once per session. */
  readonly writerIdentity: (address: string, connect: ConnectMessage) => WriterIdentity;
  /** A valid `connect` of a new session was accepted (design.md section 6 rule 2). */
  readonly onWriterConnected: (writer: WriterIdentity) => void;
  /** A timer: call tick() at this time. */
  readonly wakeAt: (timeMs: number) => void;
}

type OnSession = (session: Session | Refusal) => void;

/** Who wants a session that cannot begin yet. */
interface Waiting {
  /** The peer's own `connect`, if it came to us. */
  connect: ConnectMessage | undefined;
  readonly callbacks: OnSession[];
}

/** With as many peers as allowed, a session without any work for this long makes room for another. */
const IDLE_MS = 60_000;

export class Sessions {
  readonly #options: SessionsOptions;
  readonly #environment: SessionEnvironment;
  readonly #backoff: Backoff;
  readonly #live = new Map<string, Session>();
  readonly #draining = new Map<string, Set<Session>>();
  readonly #waiting = new Map<string, Waiting>();
  /** Callers of whenReady(), by the session whose handshake runs. */
  readonly #handshakes = new Map<Session, ((failure: Refusal | EndCause | undefined) => void)[]>();
  #isClosed = false;
  #isPaused = false;
  #onEmpty: (() => void)[] = [];

  constructor(options: SessionsOptions) {
    this.#options = options;
    this.#backoff = new Backoff(options.environment.times);
    this.#environment = {
      ...options.environment,
      writerIdentity: options.writerIdentity,
      isSuspected: (address) => this.#backoff.isSuspected(address),
      hooks: this.#hooks(),
    };
  }

  get liveCount(): number {
    return this.#live.size;
  }

  /** Sessions by handshake phase, and those that still drain. */
  countByPhase(): Record<'dialling' | 'registering' | 'acknowledging' | 'ready' | 'draining', number> {
    const counts = { dialling: 0, registering: 0, acknowledging: 0, ready: 0, draining: 0 };
    for (const session of this.#live.values()) if (session.phase !== 'over') counts[session.phase]++;
    for (const sessions of this.#draining.values()) counts.draining += sessions.size;
    return counts;
  }

  /** Live ones and those that still drain. */
  *all(): Generator<Session> {
    yield* this.#live.values();
    for (const sessions of this.#draining.values()) yield* sessions;
  }

  find(address: string): Session | undefined {
    return this.#live.get(address);
  }

  /**
   * The session with a peer that a request named: the live one, or a new one as soon as it may begin. `done` is called
   * at once when nothing has to be waited for.
   */
  acquire(address: string, done: OnSession): void {
    const live = this.#live.get(address);
    if (live) {
      done(live);
      return;
    }
    const refusal = this.#refusal(address);
    if (refusal) done(refusal);
    else this.#begin(address, undefined, done);
  }

  /** Calls back when the session with a peer is ready, or with the reason why there will be none. */
  whenReady(address: string, done: (failure: Refusal | EndCause | undefined) => void): void {
    this.acquire(address, (session) => {
      if (typeof session === 'string') done(session);
      else if (session.isReady) done(undefined);
      else this.#handshakes.set(session, [...(this.#handshakes.get(session) ?? []), done]);
    });
  }

  #endHandshake(session: Session, failure: EndCause | undefined): void {
    const callbacks = this.#handshakes.get(session) ?? [];
    this.#handshakes.delete(session);
    for (const callback of callbacks) callback(failure);
  }

  /** A message that the scanner accepted. */
  onMessage(from: string, message: IncomingMessage): void {
    const live = this.#live.get(from);
    if (live) {
      live.receive(message);
      return;
    }
    if (message.type !== 'connect') {
      if (message.type === 'disconnect') this.#forgetConnect(from);
      this.#options.countIgnored(message.type);
      dropMessage(message);
      return;
    }
    if (this.#isClosed) return;
    if (from === this.#options.localAddress) {
      this.#options.countRejection('own_identity');
      return;
    }
    if (!this.#hasRoomFor(from)) {
      this.#options.log.warn(
        { peer: from, maxPeers: this.#options.limits.maxPeers },
        'connect refused: the node has its most peers; raise --max-peers or use fewer',
      );
      return;
    }
    this.#backoff.onConnectFrom(from, this.#environment.now());
    this.#begin(from, message, undefined);
  }

  /** A payload from a peer's identity broke the protocol. */
  onProtocolError(from: string, detail: string): void {
    const live = this.#live.get(from);
    if (!live) return;
    this.#options.log.warn({ peer: from, detail }, 'peer broke the protocol; its session ends');
    live.end('protocol-error');
  }

  /** The connection under which the peer sends to us ended. */
  onPeerGone(from: string): void {
    this.#forgetConnect(from);
    const live = this.#live.get(from);
    // Before its `connect` has come, that was the connection of an earlier session.
    if (live && live.phase !== 'dialling') live.end('connection-lost');
  }

  /** A write to the peer had to be cut: that counts as a fault, whatever becomes of the session. */
  onHardStop(address: string): void {
    this.#backoff.onFault(address, this.#environment.now());
  }

  onSettled(set: SlotSet): void {
    for (const session of this.#live.values()) session.onSettled(set);
  }

  onDecoderStored(kvRequestId: string): void {
    for (const session of this.#live.values()) session.producer.onDecoderStored(kvRequestId);
  }

  onDecoderFinished(kvRequestId: string): void {
    for (const session of this.#live.values()) session.producer.onDecoderFinished(kvRequestId);
  }

  tick(nowMs: number): void {
    for (const session of this.all()) session.tick(nowMs);
  }

  /**
   * Ends every session with `disconnect` and waits until all have gone. New ones are held back until resume(), or for
   * good when the node closes.
   */
  pause(cause: 'recycling' | 'closed', done: () => void): void {
    this.#isPaused = true;
    if (cause === 'closed') this.#isClosed = true;
    for (const session of [...this.#live.values()]) session.end(cause);
    if (this.#isClosed) {
      const waiting = [...this.#waiting.values()];
      this.#waiting.clear();
      for (const { callbacks } of waiting) for (const callback of callbacks) callback('closed');
    }
    this.#onEmpty.push(done);
    this.#checkEmpty();
  }

  resume(): void {
    if (this.#isClosed) return;
    this.#isPaused = false;
    for (const address of [...this.#waiting.keys()]) this.#beginWaiting(address);
  }

  #refusal(address: string): Refusal | undefined {
    if (this.#isClosed) return 'closed';
    if (address === this.#options.localAddress) return 'self';
    if (this.#backoff.isHeld(address, this.#environment.now())) return 'backoff';
    return this.#hasRoomFor(address) ? undefined : 'peer-cap';
  }

  /** Counts the refusal. An idle session is ended for the new one. */
  #hasRoomFor(address: string): boolean {
    const isFull = (): boolean => this.#live.size + this.#waiting.size >= this.#options.limits.maxPeers;
    if (this.#waiting.has(address) || !isFull()) return true;
    this.#endIdlest();
    if (!isFull()) return true;
    this.#options.countRejection('peer_cap');
    return false;
  }

  #endIdlest(): void {
    let idlest: Session | undefined;
    for (const session of this.#live.values()) {
      if (isAtWork(session)) continue;
      if (idlest === undefined || session.lastActivityMs < idlest.lastActivityMs) idlest = session;
    }
    if (idlest && idlest.lastActivityMs + IDLE_MS <= this.#environment.now()) idlest.end('idle');
  }

  #begin(address: string, connect: ConnectMessage | undefined, callback: OnSession | undefined): void {
    if (this.#isPaused || this.#draining.has(address)) {
      const waiting = this.#waiting.get(address) ?? { connect: undefined, callbacks: [] };
      waiting.connect = connect ?? waiting.connect;
      if (callback) waiting.callbacks.push(callback);
      this.#waiting.set(address, waiting);
      return;
    }
    let session: Session;
    try {
      session = new Session(address, this.#environment);
    } catch (error) {
      // The transport refuses addresses that are no identity; the request that named one gets misses.
      this.#options.countRejection('bad_address');
      this.#options.log.warn(
        { peer: address, reason: String(error) },
        'no session: the address cannot be dialled',
      );
      callback?.('bad-address');
      return;
    }
    this.#live.set(address, session);
    callback?.(session);
    if (connect) session.receive(connect);
  }

  #beginWaiting(address: string): void {
    const waiting = this.#waiting.get(address);
    if (!waiting || this.#isPaused || this.#draining.has(address)) return;
    this.#waiting.delete(address);
    this.#begin(address, waiting.connect, (session) => {
      for (const callback of waiting.callbacks) callback(session);
    });
  }

  /** The peer whose `connect` waits has gone again. */
  #forgetConnect(address: string): void {
    const waiting = this.#waiting.get(address);
    if (!waiting) return;
    waiting.connect = undefined;
    if (waiting.callbacks.length === 0) this.#waiting.delete(address);
  }

  #hooks(): SessionHooks {
    return {
      onReady: (session) => {
        this.#backoff.onSuccess(session.address);
        this.#options.log.info(
          { peer: session.address, kvpeer: session.remote?.isKvpeer === true },
          'session ready',
        );
        this.#endHandshake(session, undefined);
      },
      onMismatch: (session, mismatch) => {
        this.#onMismatch(session, mismatch);
      },
      onEnd: (session, cause) => {
        this.#onEnd(session, cause);
      },
      onGone: (session) => {
        this.#onGone(session);
      },
      onReplaced: (session, connect) => {
        this.#begin(session.address, connect, undefined);
      },
      onIgnored: (_session, messageType) => {
        this.#options.countIgnored(messageType);
      },
      onConnectAccepted: (_session, writer) => {
        this.#options.onWriterConnected(writer);
      },
      wakeAt: this.#options.wakeAt,
    };
  }

  #onMismatch(session: Session, mismatch: Mismatch): void {
    this.#options.countMismatch(mismatch);
    this.#options.log.warn(
      { peer: session.address, field: mismatch.field, ours: mismatch.ours, theirs: mismatch.theirs },
      `connect refused: ${mismatch.field} is ${JSON.stringify(mismatch.theirs)} there and ${JSON.stringify(mismatch.ours)} here; both nodes need the same`,
    );
  }

  #onEnd(session: Session, cause: EndCause): void {
    if (this.#live.get(session.address) === session) this.#live.delete(session.address);
    const draining = this.#draining.get(session.address) ?? new Set();
    draining.add(session);
    this.#draining.set(session.address, draining);
    const waitMs = FAULTY_CAUSES.has(cause)
      ? this.#backoff.onFault(session.address, this.#environment.now())
      : 0;
    this.#options.log.info({ peer: session.address, cause, backoffMs: waitMs }, 'session ended');
    this.#endHandshake(session, cause);
  }

  #onGone(session: Session): void {
    const draining = this.#draining.get(session.address);
    draining?.delete(session);
    if (draining && draining.size > 0) return;
    this.#draining.delete(session.address);
    this.#beginWaiting(session.address);
    this.#checkEmpty();
  }

  #checkEmpty(): void {
    if (this.#live.size > 0 || this.#draining.size > 0) return;
    const callbacks = this.#onEmpty;
    this.#onEmpty = [];
    for (const callback of callbacks) callback();
  }
}

/** Something would be lost if the session ended. */
function isAtWork(session: Session): boolean {
  const { idCount } = session.consumer.stats();
  const { leaseCount, parkedCount, serveCount } = session.producer.stats();
  return !session.isReady || idCount + leaseCount + parkedCount + serveCount > 0;
}
