// Which names of a model server are its model and which are adapters, by its own list: adapters go into block hashes.

import { z } from 'zod';

import type { Upstreams } from './upstream.js';

/** An adapter's name and path, as vLLM hashes them. */
export interface Adapter {
  readonly name: string;
  readonly path: string;
}

export type ServedModel = { readonly kind: 'base' } | { readonly kind: 'adapter'; readonly adapter: Adapter };

/** Fetches a model server's list. @returns its text, or undefined when there is none */
export type FetchModels<Server> = (server: Server, signal: AbortSignal) => Promise<string | undefined>;

const FETCH_MS = 1_000;
/** An adapter may be loaded again from another place under the same name. */
const FRESH_MS = 10_000;
/** A name that is not in the list makes it be fetched again, at most so often. */
const RETRY_MS = 1_000;

const List = z.object({
  data: z.array(
    z.object({ id: z.string(), root: z.string().nullish(), parent: z.string().nullish() }).loose(),
  ),
});

interface Known {
  models: ReadonlyMap<string, ServedModel>;
  fetchedMs: number;
  fetching: Promise<void> | undefined;
}

export class ServedModels<Server> {
  readonly #fetch: FetchModels<Server>;
  readonly #nowMs: () => number;
  readonly #known = new Map<Server, Known>();

  constructor(fetch: FetchModels<Server>, nowMs = (): number => performance.now()) {
    this.#fetch = fetch;
    this.#nowMs = nowMs;
  }

  /** @returns undefined for a name that the server does not have, or when it does not say */
  async find(server: Server, name: string): Promise<ServedModel | undefined> {
    const known = this.#of(server);
    const ageMs = this.#nowMs() - known.fetchedMs;
    if (ageMs > FRESH_MS || (ageMs > RETRY_MS && !known.models.has(name))) {
      await (known.fetching ??= this.#refresh(server, known));
    } else if (known.fetching !== undefined) {
      await known.fetching;
    }
    return known.models.get(name);
  }

  #of(server: Server): Known {
    const found = this.#known.get(server);
    if (found !== undefined) return found;
    const made: Known = { models: new Map(), fetchedMs: -Infinity, fetching: undefined };
    this.#known.set(server, made);
    return made;
  }

  async #refresh(server: Server, known: Known): Promise<void> {
    try {
      const text = await this.#fetch(server, AbortSignal.timeout(FETCH_MS));
      known.models = text === undefined ? new Map() : modelsOf(text);
    } catch {
      // It does not say: nothing is known of any name.
      known.models = new Map();
    } finally {
      known.fetchedMs = this.#nowMs();
      known.fetching = undefined;
    }
  }
}

/** Of an answer to GET /v1/models. An adapter names the model it belongs to as its parent, and its path as its root. */
function modelsOf(text: string): ReadonlyMap<string, ServedModel> {
  const models = new Map<string, ServedModel>();
  for (const { id, root, parent } of List.parse(JSON.parse(text)).data) {
    if (parent === undefined || parent === null) models.set(id, { kind: 'base' });
    else if (typeof root === 'string') models.set(id, { kind: 'adapter', adapter: { name: id, path: root } });
  }
  return models;
}

const MAX_LIST_BYTES = 1 << 20;

/** Asks a model server for its list. Undefined for another status than 200, a list that is too long, and a failure. */
export function fetchModels(
  upstreams: Upstreams,
  origin: string,
  signal: AbortSignal,
): Promise<string | undefined> {
  const chunks: Buffer[] = [];
  let byteCount = 0;
  return new Promise((resolve) => {
    const leg = upstreams.send(
      {
        origin,
        method: 'GET',
        path: '/v1/models',
        headers: ['accept', 'application/json'],
        body: null,
      },
      {
        onHead: (status) => {
          if (status !== 200) abort();
        },
        onData: (chunk) => {
          byteCount += chunk.length;
          if (byteCount > MAX_LIST_BYTES) abort();
          else chunks.push(chunk);
          return true;
        },
        onEnd: () => {
          signal.removeEventListener('abort', abort);
          resolve(Buffer.concat(chunks).toString());
        },
        onError: () => {
          signal.removeEventListener('abort', abort);
          resolve(undefined);
        },
      },
    );
    function abort(): void {
      leg.abort();
    }
    signal.addEventListener('abort', abort, { once: true });
  });
}
