// The sidecar: listeners for every local rank, put together with the allow-list, TLS, metrics and a bounded drain.

import { readFile } from 'node:fs/promises';
import type { Logger } from 'pino';
import { Registry } from 'prom-client';
import { KvpeerError } from '../errors.js';
import { metricsRoute, startAdmin, type AdminRoute, type AdminServer } from '../observe/admin.js';
import { healthRoute, readyRoute } from '../observe/health.js';
import { createLogger } from '../observe/log.js';
import type { PeerApi } from '../peer-api.js';
import { openAllowList, type AllowList } from './allow-list.js';
import { RequestHandler } from './handler.js';
import type { SidecarHooks } from './hooks.js';
import { LegSigner } from './leg-signature.js';
import { Listener } from './listener.js';
import { SidecarMetrics } from './metrics.js';
import { validateSidecarOptions, type ResolvedSidecarOptions, type SidecarOptions } from './options.js';
import { fetchModels, ServedModels } from './served-models.js';
import { SpeculativePulls } from './speculative-pull.js';
import { openServingTls, type ServingTls } from './tls.js';
import { Upstreams } from './upstream.js';

export interface SidecarParts {
  readonly hooks?: SidecarHooks | undefined;
  /**
   * A peer of this process: prompts of `/inference/v1/generate` are pulled into it while the request is on its way to
   * the engine, and its metrics and readiness are served with the sidecar's. Its owner closes it, after the sidecar.
   */
  readonly peer?: PeerApi | undefined;
  /** Where metrics, and with a peer /healthz and /readyz, are served instead of `metricsPort`. */
  readonly admin?: { readonly host: string; readonly port: number } | undefined;
  /** Default: a logger of its own to standard output, at `logLevel`. */
  readonly logger?: Logger | undefined;
}

export interface Sidecar {
  /** `host:port` of every rank, in their order. */
  readonly addresses: readonly string[];
  readonly port: number;
  readonly metrics: SidecarMetrics;
  /** `host:port` of the metrics, unless they are off. */
  readonly metricsAddress: string | undefined;
  /**
   * Takes no new connections, lets running answers end for `drainMs` (default: the option), then cuts what is left.
   * Idempotent.
   */
  close(options?: { readonly drainMs?: number | undefined }): Promise<void>;
}

/**
 * Starts a sidecar.
 *
 * @param options checked like those of the command; `port` may be 0 for a free one
 * @throws KVPEER_INVALID_OPTION, KVPEER_BIND, KVPEER_KUBERNETES
 */
export async function createSidecar(options: SidecarOptions, parts: SidecarParts = {}): Promise<Sidecar> {
  const resolved = validateSidecarOptions(options);
  const logger = parts.logger ?? createLogger(resolved.logLevel);
  const log = logger.child({ part: 'sidecar' });
  const opened: Opened = {};
  try {
    opened.allowList = await openAllowList(
      {
        isProtectionOn: resolved.enableSsrfProtection,
        allow: resolved.ssrfAllow,
        allowFile: resolved.ssrfAllowFile,
        inferencePool: resolved.inferencePool,
        poolGroup: resolved.poolGroup,
        poolPorts: resolved.profile === 'A' ? 'any' : 'target',
      },
      log,
    );
    opened.tls = resolved.secureServing
      ? await openServingTls(
          {
            certPath: resolved.certPath,
            minVersion: resolved.tlsMinVersion,
            cipherSuites: resolved.tlsCipherSuites,
          },
          log,
        )
      : undefined;
    opened.legKey = await readLegKey(resolved.legKeyFile);
    if (resolved.trustClientParams) {
      log.warn('--trust-client-params: any client can name the peer that the engine pulls from');
    }
    return await RunningSidecar.start(resolved, parts, { ...opened, allowList: opened.allowList }, log);
  } catch (error) {
    await Promise.all([opened.allowList?.close(), opened.tls?.close()]);
    throw error;
  }
}

/** Shorter ones could be guessed. */
const MIN_KEY_BYTES = 16;

async function readLegKey(file: string | undefined): Promise<Buffer | undefined> {
  if (file === undefined) return undefined;
  const fault = (reason: string, cause?: unknown): KvpeerError =>
    new KvpeerError(
      'KVPEER_INVALID_OPTION',
      `--leg-key-file ${file}: ${reason}; give a file with at least ${MIN_KEY_BYTES} random bytes`,
      { cause },
    );
  let key: Buffer;
  try {
    key = await readFile(file);
  } catch (error) {
    throw fault(error instanceof Error ? error.message : String(error), error);
  }
  if (key.length < MIN_KEY_BYTES) throw fault(`it has ${key.length} bytes`);
  return key;
}

interface Opened {
  allowList?: AllowList;
  tls?: ServingTls | undefined;
  legKey?: Buffer | undefined;
}

class RunningSidecar implements Sidecar {
  readonly #options: ResolvedSidecarOptions;
  readonly #parts: SidecarParts;
  #pulls: SpeculativePulls | undefined;
  readonly #opened: Required<Pick<Opened, 'allowList'>> & Opened;
  readonly #log: Logger;
  readonly #upstreams: readonly Upstreams[];
  readonly #decoders: Upstreams;
  readonly #listeners: Listener[] = [];
  readonly #handler: RequestHandler;
  #admin: AdminServer | undefined;
  #closing: Promise<void> | undefined;
  readonly metrics = new SidecarMetrics();

  constructor(
    options: ResolvedSidecarOptions,
    parts: SidecarParts,
    opened: Required<Pick<Opened, 'allowList'>> & Opened,
    log: Logger,
  ) {
    this.#options = options;
    this.#parts = parts;
    this.#opened = opened;
    this.#log = log;
    const listeners = this.#listeners;
    const isInsecure = (stage: 'prefiller' | 'decoder'): boolean =>
      options.tlsInsecureSkipVerify.includes(stage);
    const maxIdlePerOrigin = options.maxIdleConnsPerHost;
    const prefillers = new Upstreams({ isVerified: !isInsecure('prefiller'), maxIdlePerOrigin });
    const decoders = new Upstreams({ isVerified: !isInsecure('decoder'), maxIdlePerOrigin });
    this.#upstreams = [prefillers, decoders];
    this.#decoders = decoders;
    this.#handler = new RequestHandler({
      options: {
        profile: options.profile,
        get port() {
          return options.port === 0 ? listeners[0].port : options.port;
        },
        modelServerPort: options.modelServerPort,
        dataParallelSize: options.dataParallelSize,
        p2pConnectorPort: options.p2pConnectorPort,
        podIp: options.podIp,
        isPrefillerSampled: options.enablePrefillerSampling,
        isPrefillerTls: options.enableTls.includes('prefiller'),
        isDecoderTls: options.enableTls.includes('decoder'),
        trustsClientParams: options.trustClientParams,
        readsHints: options.kvHints,
      },
      allowList: opened.allowList,
      prefillers,
      decoders,
      metrics: this.metrics,
      hooks: parts.hooks ?? {},
      pullAhead: (decision) => this.#pulls?.begin(decision),
      signer: new LegSigner(opened.legKey),
      log,
      isDraining: () => this.#closing !== undefined,
    });
  }

  static async start(...parts: ConstructorParameters<typeof RunningSidecar>): Promise<RunningSidecar> {
    const sidecar = new RunningSidecar(...parts);
    try {
      await sidecar.#pullAhead();
      await sidecar.#listen();
    } catch (error) {
      await sidecar.#closeAll(0);
      throw error;
    }
    return sidecar;
  }

  get port(): number {
    return this.#listeners[0].port;
  }

  get addresses(): readonly string[] {
    return this.#listeners.map((listener) => listener.address);
  }

  get metricsAddress(): string | undefined {
    return this.#admin?.address;
  }

  close({ drainMs = this.#options.drainMs }: { readonly drainMs?: number | undefined } = {}): Promise<void> {
    return (this.#closing ??= this.#closeAll(drainMs));
  }

  async #listen(): Promise<void> {
    const { port, host, dataParallelSize, metricsPort } = this.#options;
    for (let rank = 0; rank < dataParallelSize; rank++) {
      const listener = await Listener.open({
        host,
        port: port === 0 ? 0 : port + rank,
        tls: this.#opened.tls,
        onRequest: (request, response) => {
          void this.#handler.handle(request, response, rank);
        },
        onUpgrade: (request, socket, head) => {
          void this.#handler.upgrade(request, socket, head, rank);
        },
      });
      this.#listeners.push(listener);
    }
    const admin =
      this.#parts.admin ?? (metricsPort === 0 ? undefined : { host: host ?? '::', port: metricsPort });
    if (admin === undefined) return;
    this.#admin = await startAdmin({
      ...admin,
      routes: this.#adminRoutes(),
      onError: (path, err) => {
        this.#log.error({ err, path }, 'a metrics route failed');
      },
    });
  }

  async #pullAhead(): Promise<void> {
    const { peer } = this.#parts;
    const { pullMaxRunning, pullBlockTokens, pullHashesPerBlock, pullMaxMs, pullMaxBytes } = this.#options;
    const { enginePullsFrom, pullWaitMs } = this.#options;
    if (peer === undefined || pullMaxRunning === 0) return;
    this.#pulls = await SpeculativePulls.create(
      peer,
      {
        tokensPerHash: pullBlockTokens,
        hashesPerChunk: pullHashesPerBlock,
        hashSeed: peer.hashSeed,
        maxMs: pullMaxMs,
        maxBytes: pullMaxBytes,
        maxRunning: pullMaxRunning,
        engineAsks: enginePullsFrom,
        waitMs: pullWaitMs,
      },
      { log: this.#log, registry: this.metrics.registry, models: new ServedModels(this.#modelsOf) },
    );
  }

  /** The list of a rank's model server, through the connections that its legs take. */
  readonly #modelsOf = (rank: number, signal: AbortSignal): Promise<string | undefined> =>
    fetchModels(this.#decoders, this.#handler.decoderOrigin(rank), signal);

  #adminRoutes(): Readonly<Record<string, AdminRoute>> {
    const { peer } = this.#parts;
    const { registry } = this.metrics;
    if (peer === undefined) return { '/metrics': metricsRoute(registry) };
    return {
      '/metrics': metricsRoute(Registry.merge([registry, peer.metrics])),
      '/healthz': healthRoute(),
      '/readyz': readyRoute(() => {
        const { isReady, reasons, dataPlane } = peer.readiness();
        if (this.#closing === undefined) return { isReady, reasons, dataPlane };
        return { isReady: false, reasons: ['the sidecar is draining'], dataPlane };
      }),
    };
  }

  async #closeAll(drainMs: number): Promise<void> {
    const drained = Promise.all([
      ...this.#listeners.map((listener) => listener.drain()),
      Promise.all(this.#handler.detached),
    ]);
    if (await isLate(drained, drainMs)) {
      if (drainMs > 0) this.#log.warn({ drainMs }, 'answers that did not end in time are cut');
      for (const listener of this.#listeners) listener.destroy();
    }
    await Promise.all(this.#upstreams.map((upstreams) => upstreams.close()));
    await drained;
    await this.#pulls?.close();
    await Promise.all([this.#admin?.close(), this.#opened.tls?.close(), this.#opened.allowList.close()]);
  }
}

async function isLate(done: Promise<unknown>, ms: number): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<true>((resolve) => {
    timer = setTimeout(resolve, ms, true);
  });
  const outcome = await Promise.race([done.then(() => false), late]);
  clearTimeout(timer);
  return outcome;
}
