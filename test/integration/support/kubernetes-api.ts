// A server of the Kubernetes API's list and watch: versions, history, compaction, refusals, lost connections.

import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { freePort } from '../../helpers/free-port.js';

interface StoredObject {
  metadata: {
    name: string;
    namespace: string;
    resourceVersion: string;
    labels?: Record<string, string> | undefined;
  };
  [field: string]: unknown;
}

interface HistoryEvent {
  readonly version: number;
  readonly type: 'ADDED' | 'MODIFIED' | 'DELETED';
  readonly kind: Kind;
  readonly object: StoredObject;
}

type Kind = 'inferencepools' | 'pods';

interface OpenWatch {
  readonly kind: Kind;
  readonly query: URLSearchParams;
  readonly response: ServerResponse;
}

export class KubernetesApi {
  readonly requests: string[] = [];
  /** Statuses that the next requests are answered with, oldest first. */
  readonly refusals: number[] = [];
  /** Requests are taken and never answered. */
  isSilent = false;
  /** A watch from a compacted version: an HTTP status, or an event in a stream. */
  goneAs: 'status' | 'event' = 'event';
  #server: Server;
  #port = 0;
  #version = 1;
  #compactedTo = 0;
  #history: HistoryEvent[] = [];
  readonly #objects = new Map<Kind, Map<string, StoredObject>>([
    ['inferencepools', new Map()],
    ['pods', new Map()],
  ]);
  readonly #watches = new Set<OpenWatch>();
  #waiting: { readonly kind: Kind; readonly resolve: () => void }[] = [];

  constructor() {
    this.#server = this.#make();
  }

  #make(): Server {
    return createServer((request, response) => {
      this.#handle(request, response);
    });
  }

  get port(): number {
    return this.#port;
  }

  async start(): Promise<void> {
    this.#server = this.#make();
    // None that somebody else may get between a stop and the next start.
    if (this.#port === 0) this.#port = await freePort();
    this.#server.listen(this.#port, '127.0.0.1');
    await once(this.#server, 'listening');
  }

  /** Ends every connection, as a server that is restarted does; start() takes the same port again. */
  async stop(): Promise<void> {
    if (!this.#server.listening) return;
    const closed = once(this.#server, 'close');
    this.#server.close();
    this.#server.closeAllConnections();
    await closed;
    this.#watches.clear();
  }

  /** Ends the watches the way the server does after their time. */
  endWatches(): void {
    for (const { response } of this.#watches) response.end();
    this.#watches.clear();
  }

  /** Forgets what happened so far: a watch from before is told "Gone". */
  compact(): void {
    this.#compactedTo = this.#version;
    this.#history = [];
  }

  put(kind: Kind, name: string, fields: Record<string, unknown>, labels?: Record<string, string>): void {
    const isNew = !this.#kind(kind).has(name);
    const metadata = { name, namespace: 'default', resourceVersion: String(++this.#version), labels };
    const object: StoredObject = { metadata, ...fields };
    this.#kind(kind).set(name, object);
    this.#tell({ version: this.#version, type: isNew ? 'ADDED' : 'MODIFIED', kind, object });
  }

  delete(kind: Kind, name: string): void {
    const object = this.#kind(kind).get(name);
    if (object === undefined) throw new Error(`there is no ${kind} ${name}`);
    this.#kind(kind).delete(name);
    const metadata = { ...object.metadata, resourceVersion: String(++this.#version) };
    this.#tell({ version: this.#version, type: 'DELETED', kind, object: { ...object, metadata } });
  }

  /** A bookmark: the version moved on, nothing else. */
  bookmark(kind: Kind): void {
    this.#version++;
    const metadata = { resourceVersion: String(this.#version) };
    for (const watch of this.#watches) {
      if (watch.kind === kind) writeEvent(watch.response, 'BOOKMARK', { metadata });
    }
  }

  /** Settles when a watch of that kind is open, now or later. */
  async watched(kind: Kind): Promise<void> {
    if ([...this.#watches].some((watch) => watch.kind === kind)) return;
    await new Promise<void>((resolve) => {
      this.#waiting.push({ kind, resolve });
    });
  }

  /** Connections of the client that are open. */
  async connectionCount(): Promise<number> {
    return new Promise((resolve, reject) => {
      this.#server.getConnections((error, count) => {
        if (error === null) resolve(count);
        else reject(error);
      });
    });
  }

  get openWatchCount(): number {
    return this.#watches.size;
  }

  #kind(kind: Kind): Map<string, StoredObject> {
    const objects = this.#objects.get(kind);
    if (objects === undefined) throw new Error(kind);
    return objects;
  }

  #tell(event: HistoryEvent): void {
    this.#history.push(event);
    for (const watch of this.#watches)
      if (matches(watch, event)) writeEvent(watch.response, event.type, event.object);
  }

  #handle(request: IncomingMessage, response: ServerResponse): void {
    const url = new URL(request.url ?? '/', 'http://api');
    const isWatch = url.searchParams.get('watch') === 'true';
    this.requests.push(`${isWatch ? 'watch' : 'list'} ${url.pathname}`);
    if (this.isSilent) return;
    const refusal = this.refusals.shift();
    if (refusal !== undefined) {
      sendStatus(response, refusal, 'refused by the test');
      return;
    }
    const kind = kindOf(url.pathname);
    if (kind === undefined) sendStatus(response, 404, 'no such path');
    else if (isWatch) this.#openWatch({ kind, query: url.searchParams, response });
    else {
      const items = [...this.#kind(kind).values()].filter((object) => isSelected(object, url.searchParams));
      sendJson(response, 200, { metadata: { resourceVersion: String(this.#version) }, items });
    }
  }

  #openWatch(watch: OpenWatch): void {
    const from = Number(watch.query.get('resourceVersion'));
    const isGone = from < this.#compactedTo;
    if (isGone && this.goneAs === 'status') {
      sendStatus(watch.response, 410, 'too old resource version');
      return;
    }
    watch.response.writeHead(200, { 'content-type': 'application/json' });
    watch.response.flushHeaders();
    if (isGone) {
      writeEvent(watch.response, 'ERROR', { kind: 'Status', code: 410, message: 'too old resource version' });
      watch.response.end();
      return;
    }
    this.#watches.add(watch);
    watch.response.on('close', () => this.#watches.delete(watch));
    for (const event of this.#history) {
      if (event.version > from && matches(watch, event)) writeEvent(watch.response, event.type, event.object);
    }
    for (const { resolve } of this.#waiting.filter(({ kind }) => kind === watch.kind)) resolve();
    this.#waiting = this.#waiting.filter(({ kind }) => kind !== watch.kind);
  }

  /** A configuration file's text that leads here. */
  kubeconfig(): string {
    return JSON.stringify({
      apiVersion: 'v1',
      kind: 'Config',
      'current-context': 'test',
      clusters: [{ name: 'test', cluster: { server: `http://127.0.0.1:${this.#port}` } }],
      contexts: [{ name: 'test', context: { cluster: 'test', user: 'test' } }],
      users: [{ name: 'test', user: {} }],
    });
  }
}

function kindOf(path: string): Kind | undefined {
  if (path === '/api/v1/namespaces/default/pods') return 'pods';
  const isPool =
    /^\/apis\/inference\.networking\.(?:k8s\.io\/v1|x-k8s\.io\/v1alpha2)\/namespaces\/default\/inferencepools$/;
  return isPool.test(path) ? 'inferencepools' : undefined;
}

function matches(watch: OpenWatch, event: HistoryEvent): boolean {
  return watch.kind === event.kind && isSelected(event.object, watch.query);
}

function isSelected(object: StoredObject, query: URLSearchParams): boolean {
  const field = query.get('fieldSelector');
  if (field !== null && field !== `metadata.name=${object.metadata.name}`) return false;
  const terms = query.get('labelSelector')?.split(',') ?? [];
  return terms.every((term) => {
    const [key, value] = term.split('=');
    return object.metadata.labels?.[key] === value;
  });
}

function writeEvent(response: ServerResponse, type: string, object: unknown): void {
  response.write(`${JSON.stringify({ type, object })}\n`);
}

function sendStatus(response: ServerResponse, code: number, message: string): void {
  sendJson(response, code, { kind: 'Status', apiVersion: 'v1', status: 'Failure', code, message });
}

function sendJson(response: ServerResponse, status: number, value: unknown): void {
  response.writeHead(status, { 'content-type': 'application/json' });
  response.end(JSON.stringify(value));
}
