// The pods of an InferencePool as a source of the allow-list: addresses and names of its pods, at its target ports.

import type { Logger } from 'pino';

import { KvpeerError } from '../errors.js';
import { foldHost } from '../params/address.js';
import type { AllowSource } from './allow-list.js';
import type { Cluster, PoolAddress } from './cluster.js';
import { Endpoints } from './endpoints.js';
import { ListWatch, type KubeObject } from './list-watch.js';
import { podHosts, readPoolSpec, type PoolSpec } from './pool-spec.js';

export interface InferencePoolOptions {
  readonly pool: PoolAddress;
  /** `any`: every port of the pool's hosts. `target`: the target ports of the pool. */
  readonly ports: 'any' | 'target';
  /** Time for the first answers of the API. Default 30 s. */
  readonly syncMs?: number;
}

const SYNC_MS = 30_000;

/**
 * Watches the pool and the pods it selects. Settles when both were listed once; a pool that does not exist (yet) has
 * no pods, and is no error.
 *
 * @throws KVPEER_KUBERNETES when the API does not answer in time, with the last reason
 */
export async function openInferencePool(
  cluster: Cluster,
  options: InferencePoolOptions,
  log: Logger,
): Promise<AllowSource> {
  const source = new InferencePoolSource(cluster, options, log);
  const syncMs = options.syncMs ?? SYNC_MS;
  let timer: NodeJS.Timeout | undefined;
  const isLate = new Promise<'late'>((resolve) => {
    timer = setTimeout(resolve, syncMs, 'late');
  });
  const outcome = await Promise.race([source.synced, isLate]);
  clearTimeout(timer);
  if (outcome !== 'late') return source;
  await source.close();
  const { namespace, name, group } = options.pool;
  const reason = source.lastReason ?? 'no answer';
  const message =
    `InferencePool ${namespace}/${name} could not be read within ${syncMs} ms: ${reason}; ` +
    `the service account needs list and watch on inferencepools.${group} and on pods in ${namespace}`;
  throw new KvpeerError('KVPEER_KUBERNETES', message);
}

class InferencePoolSource implements AllowSource {
  readonly #cluster: Cluster;
  readonly #options: InferencePoolOptions;
  readonly #log: Logger;
  readonly #pool: ListWatch;
  #spec: PoolSpec | undefined;
  #pods: PodWatch | undefined;
  /** Hosts and endpoints that are allowed now. */
  #hosts: ReadonlySet<string> = new Set();
  #endpoints = new Endpoints([]);
  #isClosed = false;
  /** Why the API could not be used when it was last asked in vain. */
  lastReason: string | undefined;
  /** The pool was listed, and its pods too if there is one. */
  readonly synced: Promise<void>;

  constructor(cluster: Cluster, options: InferencePoolOptions, log: Logger) {
    this.#cluster = cluster;
    this.#options = options;
    const { namespace, name } = options.pool;
    this.#log = log.child({ pool: `${namespace}/${name}` });
    this.#pool = new ListWatch(cluster.pool(options.pool), {
      onChange: (objects) => {
        this.#setPool(objects.at(0));
      },
      ...this.#outage('the InferencePool'),
    });
    this.synced = this.#pool.listed.then(() => this.#pods?.watch.listed);
  }

  allows(host: string, port: number): boolean {
    if (this.#options.ports === 'any') return this.#hosts.has(foldHost(host));
    return this.#endpoints.has(host, port);
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    await Promise.all([this.#pool.close(), this.#pods?.watch.close()]);
  }

  #outage(what: string): { onLost: (reason: string) => void; onFound: () => void } {
    return {
      onLost: (reason) => {
        this.lastReason = reason;
        this.#log.error({ reason }, `${what} cannot be watched; the last known endpoints stay`);
      },
      onFound: () => {
        this.#log.info(`${what} is watched again`);
      },
    };
  }

  #setPool(object: KubeObject | undefined): void {
    if (this.#isClosed) return;
    if (object === undefined) {
      this.#log.warn('there is no such InferencePool: none of its pods is allowed');
      this.#spec = undefined;
      void this.#pods?.watch.close();
      this.#pods = undefined;
      this.#rebuild();
      return;
    }
    const spec = readPoolSpec(object);
    if ('reason' in spec) {
      this.#log.error({ reason: spec.reason }, 'the InferencePool cannot be used; its last good form stays');
      return;
    }
    this.#spec = spec;
    if (this.#pods?.selector === spec.selector) this.#rebuild();
    else this.#select(spec.selector);
  }

  /** Pods of the former selector stay allowed until those of the new one are known. */
  #select(selector: string): void {
    void this.#pods?.watch.close();
    const pods: PodWatch = {
      selector,
      objects: undefined,
      watch: new ListWatch(this.#cluster.pods(this.#options.pool.namespace, selector), {
        onChange: (objects) => {
          if (this.#pods !== pods) return;
          pods.objects = objects;
          this.#rebuild();
        },
        ...this.#outage('the pods of the InferencePool'),
      }),
    };
    this.#pods = pods;
  }

  #rebuild(): void {
    const pods = this.#pods;
    if (pods !== undefined && pods.objects === undefined) return;
    const hosts = (pods?.objects ?? []).flatMap(podHosts);
    const ports = this.#spec?.ports ?? [];
    this.#hosts = new Set(hosts.map(foldHost));
    this.#endpoints = new Endpoints(hosts.flatMap((host) => ports.map((port) => ({ host, port }))));
    this.#log.debug({ hosts, ports }, 'endpoints of the InferencePool');
  }
}

interface PodWatch {
  readonly selector: string;
  readonly watch: ListWatch;
  /** Undefined until the first list. */
  objects: readonly KubeObject[] | undefined;
}
