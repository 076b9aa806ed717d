// A kvpeer node in a process of its own: the producer, or the consumer that an engine would be.

import type { IntervalHistogram } from 'node:perf_hooks';
import { monitorEventLoopDelay } from 'node:perf_hooks';

import type { PeerRequest, PeerStats } from '../../src/main/peer-api.js';
import { Peer } from '../../src/main/peer.js';
import type { PeerOptions } from '../../src/main/options.js';
import { serveCalls } from '../support/child.js';
import type { CpuTimes } from '../support/cpu.js';
import { cpuTimes } from '../support/cpu.js';
import { benchKeys, randomKeys } from '../support/keys.js';

const LOOP_RESOLUTION_MS = 5;
const STORE_BATCH = 4096;
const LIST_COUNT = 32;
/** Of a block, as vLLM's default has it. */
const TOKENS = 16;

export interface StartedNode {
  readonly address: string;
  readonly numBlocks: number;
  readonly readyMs: number;
  readonly dataPlane: string;
  readonly transports: string;
  readonly kvEventsPort: number | undefined;
}

/** The methods that the parent calls. */
export class BenchNode {
  #peer: Peer | undefined;
  #delay: IntervalHistogram | undefined;
  #nextId = 1;
  #looking: PeerRequest | undefined;

  async start(options: PeerOptions): Promise<StartedNode> {
    const startMs = performance.now();
    this.#peer = await Peer.start({ host: '127.0.0.1', port: 0, logLevel: 'error', ...options });
    const readyMs = performance.now() - startMs;
    const { address, numBlocks, dataPlane } = this.#peer;
    return {
      ...{ address, numBlocks, readyMs },
      ...{ dataPlane: dataPlane.version, transports: dataPlane.transports },
      kvEventsPort: this.#peer.kvEvents?.port,
    };
  }

  /** Stores the blocks with these numbers. */
  async store(first: number, count: number): Promise<void> {
    for (let done = 0; done < count; done += STORE_BATCH) {
      const batch = Math.min(STORE_BATCH, count - done);
      await this.#running().content.storeFilled(benchKeys(first + done, batch));
    }
  }

  /** The same, with tokens told for KV events: chains of a batch's length. */
  async storeDescribed(first: number, count: number): Promise<void> {
    const tokenIds = Uint32Array.from({ length: STORE_BATCH * TOKENS }, (_, i) => (i * 7919) % 150_000);
    for (let done = 0; done < count; done += STORE_BATCH) {
      const keys = benchKeys(first + done, Math.min(STORE_BATCH, count - done));
      this.#running().describe(keys, { tokenIds, tokensPerBlock: TOKENS });
      await this.#running().content.storeFilled(keys);
    }
  }

  cpu(): CpuTimes {
    return cpuTimes();
  }

  stats(): PeerStats {
    return this.#running().stats();
  }

  startLoopDelay(): void {
    this.#delay = monitorEventLoopDelay({ resolution: LOOP_RESOLUTION_MS });
    this.#delay.enable();
  }

  /** Milliseconds that 99 % of the samples stay below. */
  stopLoopDelay(): number {
    if (this.#delay === undefined) return NaN;
    this.#delay.disable();
    return Math.max(0, this.#delay.percentile(99) / 1e6 - LOOP_RESOLUTION_MS);
  }

  async connect(address: string): Promise<void> {
    const connection = await this.#running().connect(address);
    if (!connection.isReady) throw new Error(`no session with ${address}: ${connection.reason}`);
  }

  /** One lookup after the other, each a request of its own, as an engine asks. @returns us per lookup */
  async lookups(options: {
    readonly source: string;
    readonly keyCount: number;
    readonly heldCount: number;
    readonly hitShare?: number;
    readonly count: number;
  }): Promise<Float64Array> {
    const peer = this.#running();
    const { keyCount, heldCount, hitShare = 1, count } = options;
    const lists = Array.from({ length: LIST_COUNT }, (_, i) =>
      randomKeys(i + 1, keyCount, heldCount, hitShare),
    );
    const times = new Float64Array(count);
    for (let i = 0; i < count; i++) {
      const request = peer.open({ remote_kv_source: this.#named(options.source) });
      const startMs = performance.now();
      const hits = await request.lookup(lists[i % LIST_COUNT]);
      times[i] = (performance.now() - startMs) * 1000;
      if (hitShare === 1 && hits.hitCount !== keyCount)
        throw new Error(`${hits.hitCount} of ${keyCount} keys found`);
      request.finish();
    }
    return times;
  }

  /** Pulls the first blocks and throws them away, again and again. @returns ms per load */
  async loads(options: {
    readonly source: string;
    readonly blockCount: number;
    readonly rounds: number;
  }): Promise<Float64Array> {
    const peer = this.#running();
    const keys = benchKeys(0, options.blockCount);
    const times = new Float64Array(options.rounds);
    for (let i = 0; i < options.rounds; i++) {
      const request = peer.open({ remote_kv_source: this.#named(options.source) });
      await request.lookup(keys);
      const startMs = performance.now();
      const load = await request.load(keys);
      times[i] = performance.now() - startMs;
      if (load.pulledCount !== options.blockCount) throw new Error(`${load.pulledCount} blocks pulled`);
      load.release();
      request.finish();
      // Pins of a longer list are given back by one worker; another may be at the eviction before that.
      while ((await peer.probe(keys)).hitCount > 0) await peer.evict(keys);
    }
    return times;
  }

  /**
   * Pulls the blocks with these numbers and throws them away, each time as a request of its own: with a lookup before, as
   * an engine does, or expecting that the source holds them. @returns ms from the request to the last block
   */
  async pulls(options: {
    readonly source: string;
    readonly first: number;
    readonly blockCount: number;
    readonly heldCount: number;
    readonly expectsHeld: boolean;
    readonly rounds: number;
  }): Promise<Float64Array> {
    const peer = this.#running();
    const keys = benchKeys(options.first, options.blockCount);
    const times = new Float64Array(options.rounds);
    for (let i = 0; i < options.rounds; i++) {
      const startMs = performance.now();
      const request = peer.open({ remote_kv_source: this.#named(options.source) });
      const load = options.expectsHeld
        ? await request.load(keys, { expect: 'held' })
        : await request.load(keys.subarray(0, (await request.lookup(keys)).leadingCount * peer.keyBytes));
      times[i] = performance.now() - startMs;
      if (load.pulledCount !== options.heldCount) throw new Error(`${load.pulledCount} blocks pulled`);
      load.release();
      request.finish();
      await this.#evictAll(keys, load.pulledCount);
    }
    return times;
  }

  /** A request that has looked and has not loaded yet. */
  async lookFor(source: string, first: number, count: number): Promise<void> {
    this.#looking = this.#running().open({ remote_kv_source: this.#named(source) });
    await this.#looking.lookup(benchKeys(first, count));
  }

  /** The load of that request; `again`: a second lookup and load, when the first brought nothing. */
  async loadLooked(first: number, count: number, again: boolean): Promise<{ ms: number; blocks: number }> {
    const request = this.#looking;
    if (request === undefined) throw new Error('nothing was looked for');
    const keys = benchKeys(first, count);
    const startMs = performance.now();
    let load = await request.load(keys);
    if (again && load.pulledCount === 0) {
      load.release();
      await request.lookup(keys);
      load = await request.load(keys);
    }
    const ms = performance.now() - startMs;
    const blocks = load.pulledCount;
    load.release();
    request.finish();
    await this.#evictAll(keys, blocks);
    return { ms, blocks };
  }

  async evict(first: number, count: number): Promise<number> {
    return this.#running().evict(benchKeys(first, count));
  }

  /** Pins that were given back may still be on their way to a worker. */
  async #evictAll(keys: Uint8Array, count: number): Promise<void> {
    for (let left = count; left > 0;) left -= await this.#running().evict(keys);
  }

  async close(): Promise<void> {
    await this.#peer?.close({ drainMs: 0 });
    this.#peer = undefined;
  }

  #named(source: string): { kv_request_id: string; remote_host: string; remote_port: number } {
    const at = source.lastIndexOf(':');
    return {
      kv_request_id: `bench-${process.pid}-${this.#nextId++}`,
      remote_host: source.slice(0, at),
      remote_port: Number(source.slice(at + 1)),
    };
  }

  #running(): Peer {
    if (this.#peer === undefined) throw new Error('the node was not started');
    return this.#peer;
  }
}

const node = new BenchNode();
serveCalls(node, () => node.close());
