// The Kubernetes API as collections to follow. Loaded only when an InferencePool is watched: the client library is big.

import type { Agent } from 'node:http';

import {
  ApiException,
  CoreV1Api,
  CustomObjectsApi,
  KubeConfig,
  Observable,
  Watch,
  type ConfigurationOptions,
} from '@kubernetes/client-node';

import { noCluster } from './kube-config.js';
import { KubeFailure, type Collection, type KubeList, type KubeObject } from './list-watch.js';

/** Asks the server to end a watch by itself, before the client gives it up (list-watch.ts). */
const WATCH_TIMEOUT_S = 290;

export interface PoolAddress {
  /** `inference.networking.k8s.io`, or the name before that API was final. */
  readonly group: string;
  readonly version: string;
  readonly namespace: string;
  readonly name: string;
}

export interface Cluster {
  /** The one pool of that name: none or one object. */
  pool(address: PoolAddress): Collection;
  /** @param selector as the API spells it: `app=model,tier=a` */
  pods(namespace: string, selector: string): Collection;
}

/**
 * The cluster that KUBECONFIG names, or ~/.kube/config, or the service account of this pod.
 *
 * @throws KVPEER_KUBERNETES when there is none of them
 */
export function openCluster(): Cluster {
  const config = loadConfig();
  const custom = config.makeApiClient(CustomObjectsApi);
  const core = config.makeApiClient(CoreV1Api);
  return {
    pool: ({ group, version, namespace, name }) => {
      const fieldSelector = `metadata.name=${name}`;
      const request = { group, version, namespace, plural: 'inferencepools', fieldSelector };
      return {
        list: async (signal) =>
          asList(await asked(custom.listNamespacedCustomObject(request, withSignal(signal)))),
        watch: (resourceVersion, onEvent, signal) =>
          watch(config, `/apis/${group}/${version}/namespaces/${namespace}/inferencepools`, {
            query: { fieldSelector, resourceVersion },
            onEvent,
            signal,
          }),
      };
    },
    pods: (namespace, labelSelector) => ({
      list: async (signal) =>
        asList(await asked(core.listNamespacedPod({ namespace, labelSelector }, withSignal(signal)))),
      watch: (resourceVersion, onEvent, signal) =>
        watch(config, `/api/v1/namespaces/${namespace}/pods`, {
          query: { labelSelector, resourceVersion },
          onEvent,
          signal,
        }),
    }),
  };
}

/** Where the library goes when it finds no configuration at all. */
const NOWHERE = { context: 'loaded-context', server: 'http://localhost:8080' };

function loadConfig(): KubeConfig {
  const config = new KubeConfig();
  try {
    config.loadFromDefault();
  } catch (error) {
    // The library takes an empty or another YAML file for a configuration, and stumbles over what is not in it.
    const isOther = error instanceof TypeError;
    throw noCluster(isOther ? 'the file has no clusters, users and contexts' : reasonOf(error), error);
  }
  const cluster = config.getCurrentCluster();
  if (cluster === null) throw noCluster('the configuration names no current cluster');
  if (config.getCurrentContext() === NOWHERE.context && cluster.server === NOWHERE.server) {
    throw noCluster('there is no configuration');
  }
  // The library refuses http:// unless told not to verify: there is nothing to verify then.
  config.clusters = config.clusters.map((each) =>
    each.server.startsWith('http:') ? { ...each, skipTLSVerify: true } : each,
  );
  return config;
}

function withSignal(signal: AbortSignal): ConfigurationOptions {
  const pass = <T>(value: T): Observable<T> => new Observable(Promise.resolve(value));
  return {
    middleware: [
      {
        pre: (context) => {
          context.setSignal(signal);
          return pass(context);
        },
        post: pass,
      },
    ],
    middlewareMergeStrategy: 'append',
  };
}

async function asked(answer: Promise<unknown>): Promise<unknown> {
  try {
    return await answer;
  } catch (error) {
    throw failureOf(error);
  }
}

function asList(answer: unknown): KubeList {
  const { items, metadata } = answer as { items?: unknown; metadata?: { resourceVersion?: unknown } };
  const resourceVersion = metadata?.resourceVersion;
  if (!Array.isArray(items) || typeof resourceVersion !== 'string') {
    throw new KubeFailure('the answer is no list of the Kubernetes API', undefined);
  }
  return { items: items as readonly KubeObject[], resourceVersion };
}

interface WatchRequest {
  readonly query: Readonly<Record<string, string>>;
  readonly onEvent: (type: string, object: KubeObject) => void;
  readonly signal: AbortSignal;
}

async function watch(config: KubeConfig, path: string, request: WatchRequest): Promise<void> {
  const { query, onEvent, signal } = request;
  signal.throwIfAborted();
  const stoppable = new StoppableConfig();
  stoppable.loadFromOptions(config);
  const stop = (): void => {
    stoppable.stop();
  };
  signal.addEventListener('abort', stop);
  try {
    await new Promise<void>((resolve, reject) => {
      const onObject = (type: string, object: unknown): void => {
        if (typeof object === 'object' && object !== null) onEvent(type, object);
      };
      const parameters = { ...query, allowWatchBookmarks: true, timeoutSeconds: WATCH_TIMEOUT_S };
      const onDone = (error: unknown): void => {
        if (error === null || error === undefined) resolve();
        else reject(failureOf(error));
      };
      new Watch(stoppable).watch(path, parameters, onObject, onDone).catch(onDone);
    });
  } finally {
    signal.removeEventListener('abort', stop);
    stoppable.stop();
  }
}

/**
 * A configuration for one watch whose connection can be ended at any time: the library's own way to abort comes only
 * with the answer's head, and a server that never sends one would keep the connection.
 */
class StoppableConfig extends KubeConfig {
  #agent: Agent | undefined;
  #isStopped = false;

  override async applyToFetchOptions(
    ...args: Parameters<KubeConfig['applyToFetchOptions']>
  ): ReturnType<KubeConfig['applyToFetchOptions']> {
    const init = await super.applyToFetchOptions(...args);
    if (typeof init.agent === 'object') this.#agent = init.agent;
    if (this.#isStopped) throw new KubeFailure('the watch was given up', undefined);
    return init;
  }

  stop(): void {
    this.#isStopped = true;
    this.#agent?.destroy();
  }
}

function failureOf(error: unknown): KubeFailure {
  if (error instanceof KubeFailure) return error;
  const status = statusOf(error);
  const reason = error instanceof ApiException ? messageOf(error.body) : reasonOf(error);
  const message = status === undefined ? reason : `status ${status}: ${reason}`;
  return new KubeFailure(message, status, { cause: error });
}

function statusOf(error: unknown): number | undefined {
  if (error instanceof ApiException) return error.code;
  const isFromWatch = typeof error === 'object' && error !== null && 'statusCode' in error;
  return isFromWatch && typeof error.statusCode === 'number' ? error.statusCode : undefined;
}

/** A Status object as the API sends it, parsed or as text. */
function messageOf(body: unknown): string {
  if (typeof body === 'object' && body !== null && 'message' in body)
    return String(body.message).slice(0, 500);
  return typeof body === 'string' ? body.slice(0, 500) : 'no message';
}

function reasonOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
