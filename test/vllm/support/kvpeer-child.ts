// A kvpeer in a process of its own for the tests against vLLM, driven over IPC by kvpeer.ts. Runs from dist.

import {
  CONFORMANCE_KEY_BYTES,
  conformanceBlock,
  conformanceKeys,
} from '../../../src/main/cli/conformance-set.js';
import { standardError } from '../../../src/main/cli/identity-flags.js';
import { metricsRoute, startAdmin } from '../../../src/main/observe/admin.js';
import { createLogger } from '../../../src/main/observe/log.js';
import type { PeerOptions } from '../../../src/main/options.js';
import type { Connection, PeerRequest, PinnedBlocks, StoreResult } from '../../../src/main/peer-api.js';
import { Peer } from '../../../src/main/peer.js';

export interface Call {
  readonly id: number;
  readonly method: keyof KvpeerChild;
  readonly args: readonly unknown[];
}

export interface Answer {
  readonly id: number;
  readonly result?: unknown;
  readonly error?: string;
}

export interface Started {
  readonly address: string;
  readonly numBlocks: number;
  readonly metricsUrl: string;
}

export interface LookupReport {
  /** Blocks that are hits, by number; a key that was asked twice is there twice. */
  readonly hits: readonly number[];
  readonly ms: number;
}

export interface LoadReport {
  readonly loadId: number;
  readonly loaded: readonly number[];
  readonly pulledCount: number;
  /** Loaded blocks whose bytes are not those of the conformance set. */
  readonly bad: readonly number[];
  readonly ms: number;
}

/** What a test can ask of the process. Blocks are those of the conformance set, by number. */
export class KvpeerChild {
  #peer: Peer | undefined;
  readonly #requests = new Map<number, PeerRequest>();
  readonly #pinned = new Map<number, PinnedBlocks>();
  #nextId = 1;
  #seed = '0';

  async start(options: PeerOptions, seed: string): Promise<Started> {
    const logger = createLogger(options.logLevel ?? 'info', standardError());
    this.#seed = seed;
    const peer = await Peer.start({ keyBytes: CONFORMANCE_KEY_BYTES, ...options, logger });
    this.#peer = peer;
    const admin = await startAdmin({
      host: '127.0.0.1',
      port: 0,
      routes: { '/metrics': metricsRoute(peer.metrics) },
      onError: (path, err) => {
        logger.error({ err, path }, 'an admin route failed');
      },
    });
    return {
      address: peer.address,
      numBlocks: peer.numBlocks,
      metricsUrl: `http://${admin.address}/metrics`,
    };
  }

  async store(indexes: readonly number[]): Promise<StoreResult> {
    const reservation = await this.#running.reserve(this.#keys(indexes));
    return this.#fill(reservation, indexes);
  }

  connect(address: string): Promise<Connection> {
    return this.#running.connect(address);
  }

  /** @returns the number of the request for the calls below */
  open(params: unknown): number {
    const id = this.#nextId++;
    this.#requests.set(id, this.#running.open(params));
    return id;
  }

  async lookup(request: number, indexes: readonly number[]): Promise<LookupReport> {
    const startedAt = performance.now();
    const hits = await this.#request(request).lookup(this.#keys(indexes));
    const ms = performance.now() - startedAt;
    return { hits: indexes.filter((_, i) => hits.has(i)), ms };
  }

  /** Poisons the slots, pulls, compares. The blocks stay pinned until release(loadId). */
  async load(request: number, indexes: readonly number[]): Promise<LoadReport> {
    const startedAt = performance.now();
    const load = await this.#request(request).load(this.#keys(indexes), { poison: true });
    const ms = performance.now() - startedAt;
    const loaded = indexes.filter((_, i) => load.slots[i] >= 0);
    const bad = indexes.filter((index, i) => {
      const block = load.block(i);
      return block !== undefined && !this.#content(index).equals(block);
    });
    const loadId = this.#nextId++;
    this.#pinned.set(loadId, load);
    return { loadId, loaded, pulledCount: load.pulledCount, bad, ms };
  }

  /** Blocks of a prefill: kept for the remote decoder of the request. */
  async storeFor(request: number, indexes: readonly number[]): Promise<StoreResult> {
    return this.#fill(await this.#request(request).reserve(this.#keys(indexes)), indexes);
  }

  finish(request: number): void {
    this.#request(request).finish();
    this.#requests.delete(request);
  }

  release(loadId: number): void {
    this.#pinned.get(loadId)?.release();
    this.#pinned.delete(loadId);
  }

  evict(indexes: readonly number[]): Promise<number> {
    return this.#running.evict(this.#keys(indexes));
  }

  async probe(indexes: readonly number[]): Promise<number> {
    return (await this.#running.probe(this.#keys(indexes))).hitCount;
  }

  /** Writes other bytes over blocks in place, as a pool does that gives their slots to other blocks. */
  async overwrite(indexes: readonly number[], byte: number): Promise<number> {
    const pinned = await this.#running.pin(this.#keys(indexes));
    indexes.forEach((_, i) => pinned.block(i)?.fill(byte));
    const { presentCount } = pinned;
    pinned.release();
    return presentCount;
  }

  /** Stops a process of this host as soon as this peer has begun to write to somebody. */
  async stopWhenServing(pid: number): Promise<void> {
    const { posts } = this.#running.stats().served;
    while (this.#running.stats().served.posts === posts)
      await new Promise((resolve) => setImmediate(resolve));
    process.kill(pid, 'SIGSTOP');
  }

  async close(): Promise<void> {
    await this.#peer?.close({ drainMs: 0 });
  }

  async #fill(
    reservation: Awaited<ReturnType<PeerRequest['reserve']>>,
    indexes: readonly number[],
  ): Promise<StoreResult> {
    indexes.forEach((index, i) => reservation.block(i)?.set(this.#content(index)));
    return reservation.commit();
  }

  #content(index: number): Buffer {
    return conformanceBlock(this.#seed, index, this.#running.blockBytes);
  }

  #keys(indexes: readonly number[]): Buffer {
    return conformanceKeys(this.#seed, indexes);
  }

  get #running(): Peer {
    if (!this.#peer) throw new Error('the peer is not started');
    return this.#peer;
  }

  #request(id: number): PeerRequest {
    const request = this.#requests.get(id);
    if (!request) throw new Error(`no request ${id}`);
    return request;
  }
}

const child = new KvpeerChild();
process.on('message', (call: Call) => {
  const methods = child as unknown as Record<string, (...args: readonly unknown[]) => unknown>;
  const answer = (message: Answer): void => {
    process.send?.(message);
  };
  Promise.resolve()
    .then(() => methods[call.method](...call.args))
    .then(
      (result) => {
        answer({ id: call.id, result });
      },
      (error: unknown) => {
        answer({
          id: call.id,
          error: error instanceof Error ? (error.stack ?? error.message) : String(error),
        });
      },
    );
});
process.on('disconnect', () => {
  process.exit(0);
});
