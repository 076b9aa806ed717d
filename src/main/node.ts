// Puts the control plane of a node together: transport, admission, sessions, quarantine, and the clock that drives them.

import { lookup as resolveHost } from 'node:dns/promises';
import { isIP } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';

import type { Logger } from 'pino';

import { unsentBytesTo } from '../shared/socket-backlog.js';
import { Alarm } from './alarm.js';
import { Admission, DEFAULT_ADMISSION_LIMITS } from './control/admission.js';
import type { ControlTransport } from './control/transport.js';
import { createControlTransport } from './control/zeromq-transport.js';
import { isAlive, makeIncarnation } from './identity.js';
import type { EventCounts } from './observe/event-counts.js';
import type { ResolvedOptions } from './options.js';
import { splitAdvertise } from './options.js';
import { DEFAULT_LIMITS } from './protocol/limits.js';
import { OwnFingerprint } from './own-fingerprint.js';
import type { ProtocolLimits } from './protocol/limits.js';
import { announcedFeatures } from './protocol/features.js';
import type {
  ConnectMessage,
  Feature,
  FetchMessage,
  KvpeerAnnouncement,
  LookupMessage,
} from './protocol/messages.js';
import { WIRE_VERSION } from './protocol/messages.js';
import { dropMessage } from './protocol/message-memory.js';
import { scan } from './protocol/scan.js';
import { writeConnect, writeConnectAck, writeDisconnect } from './protocol/write.js';
import { hostOf } from './session/backoff.js';
import { Consumer } from './session/consumer.js';
import { NodeDecoderRequests } from './session/decoder-requests.js';
import { HeldBudget } from './session/held-messages.js';
import { SettleWaiters } from './session/joins.js';
import { NodePinBudget } from './session/pin-budget.js';
import { Producer } from './session/producer.js';
import { SlotQuarantine } from './session/quarantine.js';
import { RoundMemory } from './session/rounds.js';
import type { RoleContext } from './session/roles.js';
import type { Session, SessionEnvironment } from './session/session.js';
import type { SessionsOptions } from './session/sessions.js';
import { Sessions } from './session/sessions.js';
import { writerIdentity } from './session/writer-identity.js';
import { NO_METADATA } from './shards/data-plane.js';
import type { DataPlane } from './shards/running-shards.js';
import type { ShardClient } from './shards/shard-client.js';

export interface NodeOptions {
  readonly options: ResolvedOptions;
  readonly shards: ShardClient;
  readonly dataPlane: DataPlane;
  readonly counts: EventCounts;
  readonly log: Logger;
  /** Extensions that may be used with other kvpeers; default all. */
  readonly features?: readonly Feature[] | undefined;
}

/** How often send queues are looked at after a hard stop. */
const SOCKET_POLL_MS = 10;

export class Node {
  readonly sessions: Sessions;
  readonly quarantine: SlotQuarantine;
  readonly joins: SettleWaiters;
  readonly rounds: RoundMemory;
  readonly decoders: NodeDecoderRequests;
  readonly pinBudget: NodePinBudget;
  readonly #heldBudget = new HeldBudget();
  readonly address: string;
  readonly now = (): number => performance.now();
  recycleCount = 0;
  readonly #options: NodeOptions;
  readonly #transport: ControlTransport;
  readonly #alarm: Alarm;
  readonly #admission: Admission;
  readonly #scanLimits: ProtocolLimits;
  readonly #announcement: KvpeerAnnouncement;
  readonly #fingerprint: OwnFingerprint;
  #lastRecycleMs = -Infinity;
  #isRecycling = false;
  #isClosing = false;
  /** Why the receive agent could not be replaced: peers cannot write here until it is. */
  #recycleFault: string | undefined;

  /** Binds the control socket. @throws KVPEER_BIND */
  static async start(options: NodeOptions): Promise<Node> {
    // Frames come only after bind() has settled and the node exists.
    const handlers: { node: Node | undefined } = { node: undefined };
    const { options: resolved } = options;
    const advertise = splitAdvertise(resolved.advertise);
    const transport = createControlTransport(
      {
        bindHost: resolved.host,
        bindPort: resolved.port,
        ...(advertise === undefined ? {} : { advertiseHost: advertise.host }),
        ...(advertise?.port === undefined ? {} : { advertisePort: advertise.port }),
        heartbeatMs: resolved.heartbeatMs,
        heartbeatTimeoutMs: resolved.heartbeatTimeoutMs,
        maxFrameBytes: resolved.maxMessageBytes,
        keyBytes: resolved.keyBytes,
        maxKeys: resolved.maxKeys,
        maxStringBytes: resolved.maxStringBytes,
      },
      {
        onMessage: (from, payload) => {
          handlers.node?.onFrame(from, payload);
        },
        onRead: (from, message, payloadBytes) => {
          if (handlers.node === undefined) dropMessage(message);
          else handlers.node.onRead(from, message, payloadBytes);
        },
        aroundReceive: (receive) => {
          options.shards.whileAwake(receive);
        },
        onPeerGone: (from) => {
          handlers.node?.onPeerGone(from);
        },
        onRejected: (reason, detail) => {
          options.counts.rejection(reason);
          options.log.debug({ reason, detail }, 'frame refused');
        },
      },
    );
    await transport.bind();
    const node = new Node(options, transport);
    handlers.node = node;
    return node;
  }

  private constructor(options: NodeOptions, transport: ControlTransport) {
    const { options: resolved, shards, log, counts } = options;
    this.#options = options;
    this.#transport = transport;
    this.address = transport.localAddress;
    this.#fingerprint = new OwnFingerprint(resolved.fingerprint, log);
    this.#alarm = new Alarm(this.now, (nowMs) => {
      this.#tick(nowMs);
    });
    this.#admission = new Admission({
      ...DEFAULT_ADMISSION_LIMITS,
      peers: resolved.maxPeers,
      // All peers may come at the same time, as they do when a cluster starts.
      allConnects: Math.max(resolved.maxPeers, DEFAULT_ADMISSION_LIMITS.allConnects),
      strangerFrameBytes: resolved.maxMetadataBytes * 2,
    });
    this.#scanLimits = {
      ...DEFAULT_LIMITS,
      keyBytes: resolved.keyBytes,
      messageBytes: resolved.maxMessageBytes,
      keyCount: resolved.maxKeys,
      stringBytes: resolved.maxStringBytes,
      metadataBytes: resolved.maxMetadataBytes,
    };
    this.#announcement = {
      version: WIRE_VERSION,
      incarnation: makeIncarnation(),
      keyBytes: resolved.keyBytes,
      features: announcedFeatures({
        hasDataPlane: options.dataPlane.name === 'nixl',
        keepsChecksums: resolved.checksums,
        allowed: options.features,
      }),
    };
    const wakeAt = (timeMs: number): void => {
      this.#alarm.wakeAt(timeMs);
    };
    const { now } = this;
    this.joins = new SettleWaiters(shards, wakeAt);
    this.rounds = new RoundMemory(resolved.rememberedMs);
    this.quarantine = new SlotQuarantine({
      shards,
      log,
      now,
      wakeAt,
      isAlive,
      hasSameHostLane: options.dataPlane.offersCma,
    });
    this.decoders = new NodeDecoderRequests({ shards, times: resolved, log, now, wakeAt });
    this.pinBudget = new NodePinBudget({ ...resolved, numBlocks: shards.numBlocks });
    this.sessions = new Sessions({
      localAddress: this.address,
      limits: resolved,
      log,
      environment: this.#sessionEnvironment(),
      countRejection: (reason) => {
        counts.rejection(reason);
      },
      countMismatch: (mismatch) => {
        counts.mismatch(mismatch);
      },
      countIgnored: (messageType) => {
        counts.ignored(messageType);
      },
      writerIdentity,
      onWriterConnected: (writer) => {
        this.quarantine.onConnect(writer);
      },
      wakeAt,
    });
    this.decoders.onStored = (kvRequestId) => {
      this.sessions.onDecoderStored(kvRequestId);
    };
    this.decoders.onEnded = (kvRequestId) => {
      this.sessions.onDecoderFinished(kvRequestId);
    };
    shards.onSettled = (set) => {
      this.joins.onSettled();
      this.sessions.onSettled(set);
    };
  }

  /** Why the control plane cannot do its work right now, one sentence each. */
  troubles(): readonly string[] {
    return this.#recycleFault === undefined
      ? []
      : [`the receive agent could not be replaced: ${this.#recycleFault}`];
  }

  get socketCount(): number {
    return this.#transport.socketCount;
  }

  /**
   * A frame, and a fault of our own that it may bring to light: the session that met it ends, the node goes on. Nothing
   * that a peer sends may end the process.
   */
  onFrame(from: string, payload: Buffer): void {
    this.#guard(from, () => {
      if (!this.#mayBeHeard(from, payload.length)) return;
      const { counts, log } = this.#options;
      const message = scan(payload, this.#scanLimits);
      if (message.type === 'rejected') {
        counts.rejection(message.reason);
        log.debug({ peer: from, reason: message.reason, detail: message.detail }, 'message refused');
        if (message.outcome === 'end-session') this.sessions.onProtocolError(from, message.detail);
        return;
      }
      if (message.type === 'connect' && !this.#mayConnect(from)) return;
      this.sessions.onMessage(from, message);
    });
  }

  /** A message that was read already. */
  onRead(from: string, message: LookupMessage | FetchMessage, payloadBytes: number): void {
    this.#guard(from, () => {
      if (this.#mayBeHeard(from, payloadBytes)) this.sessions.onMessage(from, message);
      else dropMessage(message);
    });
  }

  #guard(from: string, handle: () => void): void {
    try {
      handle();
    } catch (error) {
      this.#options.counts.rejection('internal_error');
      this.#options.log.error(
        { peer: from, err: error },
        'a message met a fault of this node; its session ends',
      );
      this.sessions.find(from)?.end('protocol-error');
    }
  }

  /** Whether a frame from a validated, unauthenticated identity is looked at: strangers have an allowance. */
  #mayBeHeard(from: string, payloadBytes: number): boolean {
    if (this.sessions.find(from) !== undefined) return true;
    const refusal = this.#admission.onFrame(from, payloadBytes, this.now());
    if (refusal) this.#options.counts.rejection(refusal);
    return refusal === undefined;
  }

  #mayConnect(from: string): boolean {
    if (this.sessions.find(from) !== undefined) return true;
    const refusal = this.#admission.onConnect(from, this.sessions.liveCount, this.now());
    if (refusal === undefined) return true;
    this.#options.counts.rejection(refusal);
    this.#options.log.warn(
      { peer: from, reason: refusal },
      'connect refused: too many peers, or too many connects from this one',
    );
    return false;
  }

  onPeerGone(from: string): void {
    this.#admission.onPeerGone(from);
    this.sessions.onPeerGone(from);
  }

  /** Ends every session, waits for their writes, closes the sockets. */
  async close(): Promise<void> {
    this.#isClosing = true;
    await new Promise<void>((resolve) => {
      this.sessions.pause('closed', resolve);
    });
    this.#alarm.stop();
    await this.#transport.close();
  }

  #tick(nowMs: number): void {
    this.sessions.tick(nowMs);
    this.joins.tick(nowMs);
    this.quarantine.tick(nowMs);
    this.decoders.tick(nowMs);
    this.#considerRecycling(nowMs);
  }

  #sessionEnvironment(): SessionsOptions['environment'] {
    const { options: resolved, shards, dataPlane } = this.#options;
    const fingerprint = this.#fingerprint;
    return {
      identity: {
        blockBytes: resolved.blockBytes,
        hashSeed: resolved.hashSeed,
        get fingerprint() {
          return fingerprint.value;
        },
      },
      times: resolved,
      announced: this.#announcement,
      now: this.now,
      openDealer: (address, onDown) => this.#transport.openDealer(address, { onDown }),
      connectFrame: () =>
        writeConnect({
          peerId: this.address,
          agentMetadata: dataPlane.metadata(),
          baseAddr: dataPlane.baseAddr,
          numBlocks: shards.numBlocks,
          blockLen: resolved.blockBytes,
          configFingerprint: fingerprint.value,
          hashSeed: resolved.hashSeed,
          kvpeer: this.#announcement,
        }),
      connectAckFrame: () => writeConnectAck(this.address),
      disconnectFrame: () => writeDisconnect(),
      register: (connect, done) => {
        this.#register(connect, done);
      },
      unregister: (dataPeer, done) => {
        shards.removePeer(dataPeer, (failure) => {
          if (failure) this.#options.log.warn({ failure }, 'a peer could not be removed from the data plane');
          done();
        });
      },
      makeConsumer: (context) => new Consumer(context, this.quarantine, this.joins, this.rounds),
      makeProducer: (context, session) =>
        new Producer({
          context,
          decoderRequests: this.decoders,
          pinBudget: this.pinBudget,
          heldBudget: this.#heldBudget,
          socketsDrained: (address, done) => {
            void this.#waitForSockets(address).then(done);
          },
          onHardStop: () => {
            this.sessions.onHardStop(session.address);
          },
        }),
      roleContext: (session) => this.#roleContext(session),
    };
  }

  #register(connect: ConnectMessage, done: Parameters<SessionEnvironment['register']>[1]): void {
    const { shards, dataPlane, log } = this.#options;
    this.#fingerprint.onAccepted(connect);
    if (dataPlane.name === 'none') {
      setImmediate(() => {
        this.#fingerprint.onRegistered(connect, true);
        done(true, undefined);
      });
      return;
    }
    const hasScratch = connect.kvpeer?.features.includes('scratch_page') === true;
    const { agentMetadata, baseAddr, numBlocks } = connect;
    const refusal = agentMetadata.equals(dataPlane.metadata())
      ? // Serving it would be writing into our own pool.
        'it carries the metadata of this very node'
      : agentMetadata.equals(NO_METADATA)
        ? 'the peer runs without a data plane and cannot be written to; start both with --data-plane nixl, or both with none'
        : undefined;
    if (refusal !== undefined) {
      log.warn({ peerId: connect.peerId }, `connect refused: ${refusal}`);
      setImmediate(() => {
        this.#fingerprint.onRegistered(connect, false);
        done(false, undefined);
      });
      return;
    }
    shards.addPeer({ agentMetadata, baseAddr, numBlocks, hasScratch }, (failure, dataPeer) => {
      if (failure) log.warn({ peerId: connect.peerId, failure }, 'NIXL did not take the peer');
      this.#fingerprint.onRegistered(connect, failure === undefined);
      done(failure === undefined, dataPeer);
    });
  }

  #roleContext(session: Session): RoleContext {
    const { options: resolved, shards, counts, log } = this.#options;
    return {
      address: session.address,
      times: resolved,
      limits: resolved,
      counters: counts,
      log,
      shards,
      now: this.now,
      send: (frame) => {
        session.send(frame);
      },
      sendAnswer: (answer) => {
        session.sendAnswer(answer);
      },
      recall: (frame) => session.recall(frame),
      wakeAt: (timeMs) => {
        this.#alarm.wakeAt(timeMs);
      },
      protocolError: (detail) => {
        counts.rejection('protocol');
        // Not inside the role's own call: it is still at work.
        queueMicrotask(() => {
          if (!session.isOver) this.sessions.onProtocolError(session.address, detail);
        });
      },
      remote: () => session.remote,
      hasSent: () => session.hasSent,
      writer: () => session.writer,
    };
  }

  /** Until no closed socket of this host has unsent data for the peer's host, at most `socketDrainMs`. */
  async #waitForSockets(address: string): Promise<void> {
    const host = hostOf(address).replace(/^\[|\]$/g, '');
    const end = this.now() + this.#options.options.socketDrainMs;
    try {
      const addresses =
        isIP(host) === 0 ? (await resolveHost(host, { all: true })).map((found) => found.address) : [host];
      while (this.now() < end && (await unsentBytesTo(new Set(addresses))) > 0) await delay(SOCKET_POLL_MS);
    } catch (error) {
      this.#options.log.warn(
        { peer: address, reason: String(error) },
        'send queues cannot be read; not waited for',
      );
    }
  }

  /** Design section 10: the consumer's hard stop. */
  #considerRecycling(nowMs: number): void {
    const { options: resolved, shards, dataPlane } = this.#options;
    const { slotCount, oldestMs } = this.quarantine.recyclable();
    if (dataPlane.name === 'none' || oldestMs === undefined || this.#isRecycling || this.#isClosing) return;
    const dueMs = oldestMs + resolved.quarantineMaxMs;
    const isDue = nowMs >= dueMs || slotCount > shards.numBlocks * resolved.quarantineShare;
    const notBeforeMs = this.#lastRecycleMs + Math.min(resolved.recycleIntervalMs, resolved.quarantineMaxMs);
    if (!isDue || nowMs < notBeforeMs) {
      this.#alarm.wakeAt(Math.max(dueMs, notBeforeMs));
      return;
    }
    this.#lastRecycleMs = nowMs;
    this.#isRecycling = true;
    void this.#recycle(slotCount).finally(() => {
      this.#isRecycling = false;
      this.sessions.resume();
    });
  }

  async #recycle(slotCount: number): Promise<void> {
    const { dataPlane, log } = this.#options;
    log.warn(
      { slots: slotCount },
      'recycling the receive agent: slots have been quarantined for too long, or too many are',
    );
    await new Promise<void>((resolve) => {
      this.sessions.pause('recycling', resolve);
    });
    try {
      await dataPlane.recycle();
    } catch (error) {
      log.error(
        { reason: String(error) },
        'the receive agent could not be recycled; the slots stay quarantined',
      );
      this.#recycleFault = error instanceof Error ? error.message : String(error);
      return;
    }
    this.#recycleFault = undefined;
    this.recycleCount++;
    this.quarantine.onRecycled();
  }
}
