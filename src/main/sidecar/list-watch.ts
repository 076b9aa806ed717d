// One collection of the Kubernetes API, kept equal to the server's: list once, then follow the watch.

import { setTimeout as delay } from 'node:timers/promises';

/** What every object of the API has of the parts that count here. */
export interface KubeObject {
  readonly metadata?: { readonly name?: string | undefined; readonly resourceVersion?: string | undefined };
}

export interface KubeList {
  readonly items: readonly KubeObject[];
  /** Where a watch goes on from. */
  readonly resourceVersion: string;
}

/** How the collection is asked for; rejects with a KubeFailure, and with anything when the signal fires. */
export interface Collection {
  list(signal: AbortSignal): Promise<KubeList>;
  /** Settles when the server ends the stream. `onEvent` must not throw. */
  watch(
    resourceVersion: string,
    onEvent: (type: string, object: KubeObject) => void,
    signal: AbortSignal,
  ): Promise<void>;
}

/** An answer of the API that is no success. */
export class KubeFailure extends Error {
  override readonly name = 'KubeFailure';
  /** The HTTP status, or undefined when there was no answer. */
  readonly status: number | undefined;

  constructor(message: string, status: number | undefined, options?: { cause?: unknown }) {
    super(message, options);
    this.status = status;
  }
}

export interface ListWatchHost {
  /** After every list and every event that changed something. */
  onChange(objects: readonly KubeObject[]): void;
  /** The server could not be asked; the last known objects stay. Told once per outage. */
  onLost(reason: string): void;
  /** After an outage: the objects are those of the server again. */
  onFound(): void;
  /** Waits; rejects when the signal fires. Default: a timer. */
  readonly wait?: (ms: number, signal: AbortSignal) => Promise<void>;
  /** 0 to 1, so that many sidecars do not ask at the same moment. Default: Math.random. */
  readonly jitter?: () => number;
}

const LIST_MS = 30_000;
/** The server ends a watch after 290 s (cluster.ts asks it to); a connection that is silently dead ends here. */
const WATCH_MS = 300_000;
const BACKOFF_MIN_MS = 500;
const BACKOFF_MAX_MS = 30_000;
/** A watch that lived for so long is no sign of trouble when it ends. */
const HEALTHY_WATCH_MS = 5_000;
/** "Gone": the version to go on from is too old, and only a list helps. */
const GONE = 410;

/**
 * Follows a collection until it is closed. While the server cannot be reached the last known objects stay: a guard
 * that forgot its list then would stop the traffic whenever the API server restarts.
 *
 * ```
 *   list --ok--> watch --ended--> watch from the last version seen --ended--> ...
 *    ^             | 410, an ERROR event, a failed request: after a pause, from the list
 *    +-------------+
 * ```
 */
export class ListWatch {
  readonly #collection: Collection;
  readonly #host: ListWatchHost;
  readonly #objects = new Map<string, KubeObject>();
  readonly #closing = new AbortController();
  readonly #running: Promise<void>;
  #resourceVersion: string | undefined;
  #failureCount = 0;
  #isLost = false;
  #markListed: () => void = () => undefined;
  /** Settles with the first list; never rejects, and never settles while there is none. */
  readonly listed: Promise<void>;

  constructor(collection: Collection, host: ListWatchHost) {
    this.#collection = collection;
    this.#host = host;
    this.listed = new Promise((resolve) => {
      this.#markListed = resolve;
    });
    this.#running = this.#run();
  }

  /** Ends the requests that are open; settles when nothing runs any more. */
  async close(): Promise<void> {
    this.#closing.abort();
    await this.#running;
  }

  /** A method, because the compiler takes a property for unchanged over an await. */
  #isClosed(): boolean {
    return this.#closing.signal.aborted;
  }

  async #run(): Promise<void> {
    const wait = this.#host.wait ?? ((ms, signal) => delay(ms, undefined, { signal }));
    while (!this.#isClosed()) {
      try {
        if (this.#resourceVersion === undefined) await this.#list();
        await this.#watch();
      } catch (error) {
        if (!this.#isClosed()) this.#fail(error);
      }
      if (this.#isClosed()) return;
      const pauseMs = this.#pauseMs();
      if (pauseMs > 0) await wait(pauseMs, this.#closing.signal).catch(() => undefined);
    }
  }

  async #list(): Promise<void> {
    const signal = AbortSignal.any([this.#closing.signal, AbortSignal.timeout(LIST_MS)]);
    const list = await this.#collection.list(signal);
    if (this.#isClosed()) return;
    this.#objects.clear();
    for (const object of list.items) {
      if (object.metadata?.name !== undefined) this.#objects.set(object.metadata.name, object);
    }
    this.#resourceVersion = list.resourceVersion;
    this.#changed();
    this.#markListed();
    this.#found();
  }

  async #watch(): Promise<void> {
    const from = this.#resourceVersion;
    if (from === undefined || this.#isClosed()) return;
    const fault: { error: KubeFailure | undefined } = { error: undefined };
    const ended = new AbortController();
    const signal = AbortSignal.any([this.#closing.signal, AbortSignal.timeout(WATCH_MS), ended.signal]);
    const startedAtMs = performance.now();
    const onEvent = (type: string, object: KubeObject): void => {
      if (fault.error !== undefined || this.#isClosed()) return;
      fault.error = this.#apply(type, object);
      if (fault.error !== undefined) ended.abort();
    };
    try {
      await this.#collection.watch(from, onEvent, signal);
    } catch (error) {
      // The end of its time is a watch's ordinary end.
      if (fault.error === undefined && !signal.aborted) throw error;
    }
    if (fault.error !== undefined) throw fault.error;
    const hasProgress = this.#resourceVersion !== from;
    const isHealthy = hasProgress || performance.now() - startedAtMs >= HEALTHY_WATCH_MS;
    this.#failureCount = isHealthy ? 0 : this.#failureCount + 1;
    this.#found();
  }

  /** @returns why the watch cannot go on, if so */
  #apply(type: string, object: KubeObject): KubeFailure | undefined {
    if (type === 'ERROR') return statusFailure(object);
    const { name, resourceVersion } = object.metadata ?? {};
    if (resourceVersion === undefined || (name === undefined && type !== 'BOOKMARK')) {
      return new KubeFailure(`an event of type ${JSON.stringify(type)} has no name or version`, undefined);
    }
    this.#resourceVersion = resourceVersion;
    if (name === undefined || type === 'BOOKMARK') return undefined;
    if (type === 'DELETED') {
      if (this.#objects.delete(name)) this.#changed();
    } else {
      this.#objects.set(name, object);
      this.#changed();
    }
    return undefined;
  }

  #changed(): void {
    this.#host.onChange([...this.#objects.values()]);
  }

  #fail(error: unknown): void {
    // Only a list tells what was missed.
    this.#resourceVersion = undefined;
    this.#failureCount++;
    // The first 410 is everyday life: etcd was compacted while the connection was down.
    if (error instanceof KubeFailure && error.status === GONE && this.#failureCount === 1) return;
    if (!this.#isLost) {
      this.#isLost = true;
      this.#host.onLost(error instanceof Error ? error.message : String(error));
    }
  }

  #found(): void {
    if (!this.#isLost) return;
    this.#isLost = false;
    this.#host.onFound();
  }

  /** The first try after a success is made at once. */
  #pauseMs(): number {
    if (this.#failureCount <= 1) return 0;
    const jitter = this.#host.jitter ?? Math.random;
    const ms = Math.min(BACKOFF_MAX_MS, BACKOFF_MIN_MS * 2 ** Math.min(this.#failureCount - 2, 16));
    return ms * (0.5 + jitter() / 2);
  }
}

function statusFailure(object: object): KubeFailure {
  const code = 'code' in object && typeof object.code === 'number' ? object.code : undefined;
  const message = 'message' in object && typeof object.message === 'string' ? object.message : 'no message';
  return new KubeFailure(`the watch ended with an error: ${message}`, code);
}
