// A running node: Peer.start() puts memory, workers, data plane and control plane together; the only place that does.

import { randomUUID } from 'node:crypto';

import type { Logger } from 'pino';
import type { Registry } from 'prom-client';

import { Counter } from '../shared/counters.js';
import { SlotTable } from '../shared/slot-state.js';
import { Blocks } from './blocks.js';
import { KvpeerError } from './errors.js';
import { registerEventMetrics } from './events/metrics.js';
import { NodeEvents } from './events/start.js';
import { Node } from './node.js';
import { EventCounts } from './observe/event-counts.js';
import { EventLoopDelay } from './observe/event-loop.js';
import type { DataPlaneStatus, Readiness } from './observe/health.js';
import { createLogger } from './observe/log.js';
import { createMetrics } from './observe/metrics.js';
import type { PeerOptions, ResolvedOptions } from './options.js';
import { validateOptions } from './options.js';
import { allocateIds, parseHostPort, parseParamsOrThrow, withHints } from './params/index.js';
import type {
  BlockDescription,
  Connection,
  ContentTools,
  Hits,
  KvEventPorts,
  OpenOptions,
  PackedKeys,
  PeerApi,
  PeerStats,
  PinnedBlocks,
  Reservation,
  StoreResult,
} from './peer-api.js';
import { Request } from './request.js';
import type { RunningShards } from './shards/running-shards.js';
import { type StartedShards, startShards } from './shards/start.js';
import type { Tier } from './tier-api.js';
import { StepTier } from './tier.js';

export class Peer implements PeerApi {
  readonly address: string;
  readonly numBlocks: number;
  readonly blockBytes: number;
  readonly keyBytes: number;
  readonly shardCount: number;
  readonly hashSeed: string;
  readonly content: ContentTools;
  readonly tier: Tier;
  readonly metrics: Registry;
  readonly #options: ResolvedOptions;
  readonly #shards: RunningShards;
  readonly #node: Node;
  readonly #blocks: Blocks;
  readonly #counts: EventCounts;
  readonly #eventLoop: EventLoopDelay;
  readonly #events: NodeEvents | undefined;
  readonly #requests = new Set<Request>();
  #closing: Promise<void> | undefined;

  /**
   * Starts a node: checks and maps the memory, starts the workers and the receive agent, binds the control socket.
   *
   * @throws KVPEER_INVALID_OPTION, KVPEER_MEMORY, KVPEER_NIXL_UNAVAILABLE, KVPEER_NATIVE_UNAVAILABLE, KVPEER_BIND
   */
  static async start(options: PeerOptions = {}): Promise<Peer> {
    const resolved = validateOptions(options);
    const log = options.logger ?? createLogger(resolved.logLevel);
    const counts = new EventCounts();
    const shards = await startShards(
      {
        ...resolved,
        arenaBytes: resolved.arenaBytes === 'auto' ? undefined : resolved.arenaBytes,
        marksResidency: resolved.kvEventsPort !== 'off',
      },
      log,
    );
    let events: NodeEvents | undefined;
    try {
      events = await startEvents(resolved, shards, log);
      const node = await Node.start({
        options: resolved,
        shards: shards.client,
        dataPlane: shards.dataPlane,
        counts,
        log,
        features: options.features,
      });
      return new Peer(resolved, shards, node, counts, events);
    } catch (error) {
      await events?.close();
      await shards.close();
      throw error;
    }
  }

  private constructor(
    options: ResolvedOptions,
    shards: RunningShards,
    node: Node,
    counts: EventCounts,
    events: NodeEvents | undefined,
  ) {
    this.#events = events;
    this.#options = options;
    this.#shards = shards;
    this.#node = node;
    this.#counts = counts;
    this.#eventLoop = new EventLoopDelay();
    this.address = node.address;
    this.numBlocks = shards.client.numBlocks;
    this.blockBytes = shards.client.blockBytes;
    this.keyBytes = shards.client.keyBytes;
    this.shardCount = shards.shardCount;
    this.hashSeed = options.hashSeed;
    this.#blocks = new Blocks({
      shards: shards.client,
      pool: shards.pool,
      joins: node.joins,
      hasChecksums: options.checksums,
      storeMs: options.storeMs,
      now: node.now,
    });
    this.content = this.#blocks.contentTools();
    this.tier = new StepTier(this);
    this.metrics = createMetrics({
      slots: () => this.stats().slots,
      pins: () => this.stats().pins,
      leases: () => this.stats().leases,
      sessions: () => node.sessions.countByPhase(),
      nixlPeers: () => this.stats().nixlPeers,
      sockets: () => node.socketCount,
      rejections: () => counts.rejections,
      mismatches: () => counts.mismatches.values(),
      misses: () => counts.misses,
      ignoredMessages: () => counts.ignoredMessages,
      ignoredHints: () => counts.ignoredHints,
      hardStops: () => counts.hardStopCount,
      receiveAgentRecycles: () => node.recycleCount,
      workerRestarts: () => shards.restartCount,
      evictions: () => shards.counter(Counter.Evictions),
      bytesServed: () => shards.counter(Counter.BytesServed),
      bytesPulled: () => counts.pulledBytes,
      ringDepths: () => shards.ringDepths(),
      eventLoop: this.#eventLoop,
      histograms: Object.values(counts.histograms),
    });
    if (events !== undefined) registerEventMetrics(this.metrics, events);
  }

  get kvEvents(): KvEventPorts | undefined {
    const { port, replayPort } = this.#events ?? {};
    return port === undefined ? undefined : { port, replayPort };
  }

  describe(keys: PackedKeys, description: BlockDescription): void {
    this.#assertOpen();
    this.#events?.describe(keys, this.keyBytes, description);
  }

  get dataPlane(): DataPlaneStatus {
    return this.#shards.dataPlaneStatus;
  }

  open(kvTransferParams?: unknown, { kvHints, allowsHint }: OpenOptions = {}): Request {
    this.#assertOpen();
    const self = parseHostPort(this.address);
    const hinted = withHints(parseParamsOrThrow(kvTransferParams), kvHints, {
      allows: allowsHint,
      self: 'reason' in self ? [] : [self],
      ignored: (reason) => {
        this.#counts.hintIgnored(reason);
      },
    });
    const params = allocateIds(hinted, randomUUID);
    const request = new Request(
      {
        shards: this.#shards.client,
        blocks: this.#blocks,
        sessions: this.#node.sessions,
        decoders: this.#node.decoders,
        counters: this.#counts,
        lookupMs: this.#options.lookupMs,
        leaseMs: this.#options.leaseMs,
        onFinished: (finished) => {
          this.#requests.delete(finished);
        },
      },
      params,
    );
    this.#requests.add(request);
    return request;
  }

  connect(address: string): Promise<Connection> {
    this.#assertOpen();
    return new Promise((resolve) => {
      this.#node.sessions.whenReady(address, (failure) => {
        resolve(failure === undefined ? { isReady: true } : { isReady: false, reason: failure });
      });
    });
  }

  store(keys: PackedKeys, blocks: Uint8Array): Promise<StoreResult> {
    this.#assertOpen();
    return this.#blocks.store(keys, blocks);
  }

  reserve(keys: PackedKeys): Promise<Reservation> {
    this.#assertOpen();
    return this.#blocks.reserve(keys);
  }

  pin(keys: PackedKeys): Promise<PinnedBlocks> {
    this.#assertOpen();
    return this.#blocks.pin(keys);
  }

  probe(keys: PackedKeys): Promise<Hits> {
    this.#assertOpen();
    return this.#blocks.probe(keys);
  }

  evict(keys: PackedKeys): Promise<number> {
    this.#assertOpen();
    return this.#blocks.evict(keys);
  }

  stats(): PeerStats {
    const { slots, pins, nixlPeers } = this.#shards.stats();
    let leases = 0;
    for (const session of this.#node.sessions.all()) leases += session.producer.stats().leaseCount;
    return {
      slots,
      pins,
      leases,
      sessions: this.#node.sessions.countByPhase(),
      nixlPeers,
      sockets: this.#node.socketCount,
      evictions: this.#shards.counter(Counter.Evictions),
      bytesServed: this.#shards.counter(Counter.BytesServed),
      bytesPulled: this.#counts.pulledBytes,
      served: {
        posts: this.#shards.counter(Counter.WritePosts),
        cut: this.#shards.counter(Counter.WritesCut),
        failed: this.#shards.counter(Counter.WritesFailed),
        writeMs: this.#shards.counter(Counter.WritingMs),
      },
      workerRestarts: this.#shards.restartCount,
      hardStops: this.#counts.hardStopCount,
      receiveAgentRecycles: this.#node.recycleCount,
    };
  }

  readiness(): Readiness {
    const reasons = this.#closing
      ? ['the peer is closing']
      : [...this.#shards.troubles(), ...this.#node.troubles()];
    return { isReady: reasons.length === 0, reasons, dataPlane: this.dataPlane };
  }

  close(options: { readonly drainMs?: number } = {}): Promise<void> {
    this.#closing ??= this.#close(options.drainMs ?? this.#options.drainMs);
    return this.#closing;
  }

  /** Running loads get `drainMs` to end; then the peers are told, and everything is taken down. */
  async #close(drainMs: number): Promise<void> {
    const endMs = this.#node.now() + drainMs;
    while (this.#node.now() < endMs && this.#isBusy())
      await new Promise((resolve) => setTimeout(resolve, 10));
    for (const request of [...this.#requests]) request.finish();
    await this.#node.close();
    await this.#events?.close();
    await this.#shards.close();
    this.#eventLoop.close();
  }

  #isBusy(): boolean {
    for (const session of this.#node.sessions.all()) {
      const { openLookupCount, openLoadCount } = session.consumer.stats();
      if (openLookupCount + openLoadCount + session.producer.stats().serveCount > 0) return true;
    }
    return false;
  }

  #assertOpen(): void {
    if (this.#closing) throw new KvpeerError('KVPEER_CLOSED', 'the peer was closed; start a new one');
  }
}

/** Undefined when the options ask for none. @throws KVPEER_BIND */
async function startEvents(
  options: ResolvedOptions,
  shards: StartedShards,
  log: Logger,
): Promise<NodeEvents | undefined> {
  const { memory, residencyMarks, client } = shards;
  if (residencyMarks === undefined) return undefined;
  const table = new SlotTable(memory.control, memory.layout);
  const started = await NodeEvents.start({ options, table, marks: residencyMarks, log });
  client.inFlight.onDrained = started.events.onProgress;
  return started;
}
