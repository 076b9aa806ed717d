// One session: the handshake with one incarnation of one peer, and the routing of its messages to the two roles.

import type { DealerHandle, DownCause } from '../control/transport.js';
import { commonFeatures } from '../protocol/features.js';
import type { ConnectMessage, IncomingMessage, KvpeerAnnouncement } from '../protocol/messages.js';
import { writeNumberedAnswer, type NumberedAnswer } from '../protocol/write.js';
import type { DataPeer, SlotSet } from '../shards/shard-client.js';
import { dropMessage } from '../protocol/message-memory.js';
import type {
  EndCause,
  HandshakeEffect,
  HandshakeEvent,
  HandshakeState,
  LocalIdentity,
  Mismatch,
} from './handshake.js';
import { findMismatch, HANDSHAKE_START, handshakeStep } from './handshake.js';
import type {
  ConsumerRole,
  ProducerRole,
  RemotePeer,
  RoleContext,
  SessionTimes,
  WriterIdentity,
} from './roles.js';

/** What a session needs from the node. One object for all sessions. */
export interface SessionEnvironment {
  readonly identity: LocalIdentity;
  readonly times: SessionTimes;
  /** Extensions that this node announces. */
  readonly announced: Pick<KvpeerAnnouncement, 'features' | 'keyBytes'>;
  now(): number;
  openDealer(address: string, onDown: (cause: DownCause) => void): DealerHandle;
  connectFrame(): Buffer;
  connectAckFrame(): Buffer;
  disconnectFrame(): Buffer;
  /** Registers the peer with the data plane; undefined with --data-plane none. `done` is never called synchronously. */
  register(connect: ConnectMessage, done: (ok: boolean, dataPeer: DataPeer | undefined) => void): void;
  unregister(dataPeer: DataPeer, done: () => void): void;
  makeConsumer(context: RoleContext, session: Session): ConsumerRole;
  makeProducer(context: RoleContext, session: Session): ProducerRole;
  roleContext(session: Session): RoleContext;
  isSuspected(address: string): boolean;
  writerIdentity(address: string, connect: ConnectMessage): WriterIdentity;
  hooks: SessionHooks;
}

/** What the node hears from its sessions. */
export interface SessionHooks {
  onReady(session: Session): void;
  onMismatch(session: Session, mismatch: Mismatch): void;
  /** Called once; afterwards the session may still be draining. */
  onEnd(session: Session, cause: EndCause): void;
  /** Called once, after onEnd: nothing of this session can be written any more, its socket is closed, its peer unregistered. */
  onGone(session: Session): void;
  /** Another run of the peer at the same address sent this `connect`. */
  onReplaced(session: Session, connect: ConnectMessage): void;
  onIgnored(session: Session, messageType: string): void;
  /** A valid `connect` was accepted, before the data plane registers the peer. */
  onConnectAccepted(session: Session, writer: WriterIdentity): void;
  wakeAt(timeMs: number): void;
}

/**
 * What may wait for the peer's ack; beyond it the session ends, as with a full send queue. In bytes too: a peer that
 * asks and never acknowledges would otherwise make us keep its answers, megabytes each.
 */
const MAX_QUEUED_FRAMES = 4_096;
const MAX_QUEUED_BYTES = 64 * 1024 * 1024;

/** How long a refusing session keeps its DEALER so that our `connect` arrives: from it the peer sees the mismatch too. */
const REFUSAL_MS = 500;

/** Causes after which the peer is not told: it is not there, it knows, or it finds out from our `connect`. */
const SILENT_CAUSES: ReadonlySet<EndCause> = new Set<EndCause>([
  'mismatch',
  'peer-disconnected',
  'connection-lost',
  'refused',
]);

/** See the picture in handshake.ts. Made dialling: the constructor opens the DEALER and sends `connect`. */
export class Session {
  readonly address: string;
  readonly consumer: ConsumerRole;
  readonly producer: ProducerRole;
  readonly #env: SessionEnvironment;
  readonly #handshakeDeadlineMs: number;
  /** For the first sign of life: shorter on a suspected host. */
  readonly #answerDeadlineMs: number;
  readonly #redialMs: number;
  #state: HandshakeState = HANDSHAKE_START;
  #dealer: DealerHandle;
  /** Set while a refused peer is left the time to see our `connect`. */
  #closeDealerMs: number | undefined;
  #isDealerClosed = false;
  #queued: Buffer[] = [];
  #queuedBytes = 0;
  #maySend = false;
  #remote: RemotePeer | undefined;
  #connect: ConnectMessage | undefined;
  #writer: WriterIdentity | undefined;
  #isRegistering = false;
  #hasLeft = false;
  #lastActivityMs: number;

  /** @throws KVPEER_INVALID_ARGUMENT when the address is not a legal identity */
  constructor(address: string, env: SessionEnvironment) {
    this.address = address;
    this.#env = env;
    const now = env.now();
    this.#lastActivityMs = now;
    const { handshakeMs, suspectedHandshakeMs, redialMs } = env.times;
    this.#handshakeDeadlineMs = now + handshakeMs;
    this.#answerDeadlineMs =
      now + (env.isSuspected(address) ? Math.min(suspectedHandshakeMs, handshakeMs) : handshakeMs);
    this.#redialMs = now + redialMs;
    this.#dealer = this.#dial();
    const context = env.roleContext(this);
    this.consumer = env.makeConsumer(context, this);
    this.producer = env.makeProducer(context, this);
    this.producer.onDrained = () => {
      this.#leave();
    };
    env.hooks.wakeAt(this.#redialMs);
    env.hooks.wakeAt(this.#answerDeadlineMs);
    env.hooks.wakeAt(this.#handshakeDeadlineMs);
  }

  get phase(): HandshakeState['phase'] {
    return this.#state.phase;
  }

  get isReady(): boolean {
    return this.#state.phase === 'ready';
  }

  get isOver(): boolean {
    return this.#state.phase === 'over';
  }

  /** Present from the moment the data plane knows the peer. */
  get remote(): RemotePeer | undefined {
    return this.#remote;
  }

  /** The peer acknowledged us at some time: what we sent may have reached its roles. */
  get hasSent(): boolean {
    return this.#maySend;
  }

  /** The peer's accepted `connect`. */
  get connect(): ConnectMessage | undefined {
    return this.#connect;
  }

  /** Under which identity the peer writes here; undefined until its `connect` was accepted. */
  get writer(): WriterIdentity | undefined {
    return this.#writer;
  }

  /** When a frame last came or went. */
  get lastActivityMs(): number {
    return this.#lastActivityMs;
  }

  /** A valid message from the peer's identity. */
  receive(message: IncomingMessage): void {
    this.#lastActivityMs = this.#env.now();
    switch (message.type) {
      case 'connect':
        this.#step({ type: 'connect', message, mismatch: findMismatch(this.#env.identity, message) });
        return;
      case 'connect_ack':
        this.#step({ type: 'connect_ack' });
        return;
      case 'disconnect':
        this.end('peer-disconnected');
        return;
      case 'lookup':
      case 'lookup_resp':
      case 'fetch':
      case 'transfer_done':
      case 'abort_fetch':
      case 'abort_ack':
        this.#receiveRequest(message);
        return;
    }
  }

  /** Messages of the roles mean something only once the data plane knows the peer: before, we have not acknowledged it. */
  #receiveRequest(
    message: Exclude<IncomingMessage, { type: 'connect' | 'connect_ack' | 'disconnect' }>,
  ): void {
    if (this.isOver || this.#remote === undefined) {
      this.#env.hooks.onIgnored(this, message.type);
      dropMessage(message);
      return;
    }
    switch (message.type) {
      case 'lookup':
        this.producer.onLookup(message);
        return;
      case 'fetch':
        this.producer.onFetch(message);
        return;
      case 'abort_fetch':
        this.producer.onAbortFetch(message);
        return;
      case 'lookup_resp':
        this.consumer.onLookupResp(message);
        return;
      case 'transfer_done':
        this.consumer.onTransferDone(message);
        return;
      case 'abort_ack':
        this.consumer.onAbortAck(message);
        return;
    }
  }

  /** For the roles: goes out at once, or when the peer has acknowledged us. Dropped once the session is over. */
  send(frame: Buffer): void {
    if (this.isOver) return;
    if (this.#maySend) {
      this.#push(frame);
    } else if (
      this.#queued.length < MAX_QUEUED_FRAMES &&
      this.#queuedBytes + frame.length <= MAX_QUEUED_BYTES
    ) {
      this.#queued.push(frame);
      this.#queuedBytes += frame.length;
    } else {
      this.#failLater();
    }
  }

  /** As send() of the same as a frame. */
  sendAnswer(answer: NumberedAnswer): void {
    if (!this.#maySend) {
      this.send(writeNumberedAnswer(answer));
    } else if (!this.isOver) {
      this.#lastActivityMs = this.#env.now();
      if (!this.#dealer.sendAnswer(answer)) this.#failLater();
    }
  }

  /** Takes back a frame that waits for the peer's ack: true if it has not left and never will. */
  recall(frame: Buffer): boolean {
    const at = this.#queued.indexOf(frame);
    if (at < 0) return false;
    this.#queued.splice(at, 1);
    this.#queuedBytes -= frame.length;
    return true;
  }

  onSettled(set: SlotSet): void {
    this.producer.onSettled(set);
  }

  /** Also to be called after the end, until onGone. */
  tick(nowMs: number): void {
    if (!this.isOver) {
      this.#tickHandshake(nowMs);
      this.consumer.tick(nowMs);
    }
    this.producer.tick(nowMs);
    if (this.#closeDealerMs !== undefined && nowMs >= this.#closeDealerMs) this.#closeDealer();
  }

  end(cause: EndCause): void {
    this.#step({ type: 'end', cause });
  }

  #tickHandshake(nowMs: number): void {
    if (this.isReady) return;
    const deadlineMs = this.phase === 'dialling' ? this.#answerDeadlineMs : this.#handshakeDeadlineMs;
    if (nowMs >= deadlineMs) this.#step({ type: 'deadline' });
    else if (nowMs >= this.#redialMs) this.#step({ type: 'redial-time' });
  }

  #dial(): DealerHandle {
    const dealer = this.#env.openDealer(this.address, (cause) => {
      // A connection that was closed on purpose (redial) does not speak for the session.
      if (dealer !== this.#dealer) return;
      if (this.#closeDealerMs !== undefined) this.#closeDealer();
      else this.end(endCauseOf(cause));
    });
    dealer.send(this.#env.connectFrame());
    return dealer;
  }

  #push(frame: Buffer): void {
    this.#lastActivityMs = this.#env.now();
    if (!this.#dealer.send(frame)) this.#failLater();
  }

  /** Not inside the call of a role, which is still at work. */
  #failLater(): void {
    queueMicrotask(() => {
      this.end('send-failed');
    });
  }

  #step(event: HandshakeEvent): void {
    const { state, effects } = handshakeStep(this.#state, event);
    this.#state = state;
    for (const effect of effects) this.#apply(effect);
  }

  #apply(effect: HandshakeEffect): void {
    switch (effect.type) {
      case 'register':
        this.#register(effect.connect);
        return;
      case 'send-ack':
        this.#push(this.#env.connectAckFrame());
        return;
      case 'redial':
        // The transport opens the new connection when the old one is gone.
        void this.#dealer.close();
        this.#dealer = this.#dial();
        return;
      case 'flush': {
        this.#maySend = true;
        const queued = this.#queued;
        this.#queued = [];
        this.#queuedBytes = 0;
        for (const frame of queued) this.send(frame);
        return;
      }
      case 'ready':
        this.#env.hooks.onReady(this);
        return;
      case 'reject':
        this.#env.hooks.onMismatch(this, effect.mismatch);
        return;
      case 'ignore':
        this.#env.hooks.onIgnored(this, effect.messageType);
        return;
      case 'replace':
        this.#env.hooks.onReplaced(this, effect.connect);
        return;
      case 'end':
        this.#end(effect.cause);
        return;
    }
  }

  #register(connect: ConnectMessage): void {
    this.#connect = connect;
    this.#writer = this.#env.writerIdentity(this.address, connect);
    this.#isRegistering = true;
    this.#env.hooks.onConnectAccepted(this, this.#writer);
    this.#env.register(connect, (ok, dataPeer) => {
      this.#isRegistering = false;
      if (ok) {
        this.#remote = {
          isKvpeer: connect.kvpeer !== undefined,
          features: commonFeatures(this.#env.announced, connect.kvpeer),
          numBlocks: connect.numBlocks,
          dataPeer,
        };
        this.#step({ type: 'registered' });
      } else {
        this.#step({ type: 'registration-failed' });
      }
      this.#leave();
    });
  }

  #end(cause: EndCause): void {
    if (!SILENT_CAUSES.has(cause)) this.#dealer.send(this.#env.disconnectFrame());
    this.#env.hooks.onEnd(this, cause);
    this.consumer.end();
    this.producer.end();
    this.#queued = [];
    this.#queuedBytes = 0;
    const isRefusal = cause === 'mismatch' || cause === 'registration-failed';
    if (isRefusal && !this.#dealer.isConnected) {
      this.#closeDealerMs = this.#env.now() + REFUSAL_MS;
      this.#env.hooks.wakeAt(this.#closeDealerMs);
    } else {
      this.#closeDealer();
    }
  }

  #closeDealer(): void {
    this.#closeDealerMs = undefined;
    void this.#dealer.close().then(() => {
      this.#isDealerClosed = true;
      this.#leave();
    });
  }

  /** The last step, once: unregister the peer when nothing can be written to it any more. */
  #leave(): void {
    if (!this.isOver || !this.producer.isDrained() || this.#isRegistering || !this.#isDealerClosed) return;
    if (this.#hasLeft) return;
    this.#hasLeft = true;
    const onGone = (): void => {
      this.#env.hooks.onGone(this);
    };
    const dataPeer = this.#remote?.dataPeer;
    if (dataPeer) this.#env.unregister(dataPeer, onGone);
    else onGone();
  }
}

function endCauseOf(cause: DownCause): EndCause {
  switch (cause) {
    case 'disconnected':
    case 'unexpected-frame':
      return 'connection-lost';
    case 'send-failed':
      return 'send-failed';
    case 'refused':
    case 'unresolved':
    case 'not-advertisable':
    case 'handshake-failed':
      return 'refused';
  }
}
