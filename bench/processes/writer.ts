// NIXL and nothing else: writes blocks of its own pool into a client's, in a loop that waits for nothing but NIXL.

import { loadNixl, NixlStatus, PostResult } from '../../native/nixl.js';
import type { NixlPeerHandle, NixlSender, SendAgentHandle } from '../../native/nixl.js';
import { PositionStatus } from '../../src/shared/operations.js';
import { median } from '../stats.js';
import { serveCalls } from '../support/child.js';
import type { BarePool, PoolSize } from '../support/client-memory.js';
import { makePool, nixlLibrary } from '../support/client-memory.js';
import { shuffled } from '../support/keys.js';

/** Medians over rounds, us. */
export interface WriteSplit {
  readonly buildUs: number;
  readonly postUs: number;
  readonly pollUs: number;
}

function usOf(work: () => void): number {
  const startMs = performance.now();
  work();
  return (performance.now() - startMs) * 1000;
}

/** As many as the mover keeps open. */
const OPEN_REQUESTS = 4;

/** The methods that the parent calls. */
export class Writer {
  readonly #nixl = loadNixl();
  readonly #result = new Int32Array(PostResult.Words);
  readonly #ended = new Int32Array(128);
  #bare: BarePool | undefined;
  #agent: SendAgentHandle | undefined;
  #peer: NixlPeerHandle | undefined;

  async start(size: PoolSize): Promise<void> {
    this.#nixl.load(nixlLibrary());
    this.#bare = await makePool(size, 0x5a);
    this.#agent = this.#nixl.createSendAgent(this.#bare.poolHandle, size.numBlocks, size.blockBytes);
  }

  addPeer(metadata: Uint8Array, baseAddr: number, numBlocks: number): void {
    this.#peer = this.#nixl.addPeer(this.#started(this.#agent), metadata, baseAddr, numBlocks, false);
  }

  /** @returns ms from the first post to the last completion, per round */
  write(blockCount: number, order: 'consecutive' | 'scattered', rounds: number): Float64Array {
    const pairs = this.#pairs(blockCount, order);
    return Float64Array.from({ length: rounds }, () => this.#writeOnce(pairs));
  }

  /** Times of one round's steps, us: pairs made, requests posted, requests looked at. Medians of the rounds. */
  split(blockCount: number, order: 'consecutive' | 'scattered', rounds: number): WriteSplit {
    const splits = Array.from({ length: rounds }, (): WriteSplit => {
      const { slotsOffset, pairs } = this.#lists(blockCount, order);
      const buildUs = usOf(() => {
        this.#prepare(slotsOffset, blockCount, pairs);
      });
      const nixl = this.#nixl;
      let [postUs, pollUs] = [0, 0];
      this.#writeOnce(pairs, {
        post: (...args) => {
          postUs += usOf(() => {
            nixl.post(...args);
          });
        },
        poll: (...args) => {
          let count = 0;
          pollUs += usOf(() => {
            count = nixl.poll(...args);
          });
          return count;
        },
      });
      return { buildUs, postUs, pollUs };
    });
    return {
      buildUs: median(splits.map(({ buildUs }) => buildUs)),
      postUs: median(splits.map(({ postUs }) => postUs)),
      pollUs: median(splits.map(({ pollUs }) => pollUs)),
    };
  }

  #writeOnce(pairs: Int32Array, nixl: Pick<NixlSender, 'post' | 'poll'> = this.#nixl): number {
    const agent = this.#started(this.#agent);
    const peer = this.#started(this.#peer);
    const total = pairs.length / 2;
    let first = 0;
    let openCount = 0;
    const startMs = performance.now();
    while (first < total || openCount > 0) {
      if (first < total && openCount < OPEN_REQUESTS) {
        nixl.post(agent, peer, pairs, first, total - first, this.#result);
        first += this.#result[PostResult.TakenCount];
        if (this.#result[PostResult.RequestId] !== 0) openCount += 1;
        else this.#check(this.#result[PostResult.Status]);
      }
      const count = openCount === 0 ? 0 : nixl.poll(agent, this.#ended);
      for (let i = 0; i < count; i++) this.#check(this.#ended[2 * i + 1]);
      openCount -= count;
    }
    return performance.now() - startMs;
  }

  #pairs(count: number, order: 'consecutive' | 'scattered'): Int32Array {
    const { slotsOffset, pairs } = this.#lists(count, order);
    this.#prepare(slotsOffset, count, pairs);
    return pairs;
  }

  /** Slots, indexes and statuses, one behind the other in the control mapping, and room for the pairs. */
  #lists(count: number, order: 'consecutive' | 'scattered'): { slotsOffset: number; pairs: Int32Array } {
    const { control, layout } = this.#started(this.#bare);
    const slotsOffset = layout.arenaOffset;
    const indexesOffset = slotsOffset + 4 * count;
    const statusesOffset = indexesOffset + 4 * count;
    new Int32Array(control, slotsOffset, count).forEach((_, i, slots) => {
      slots[i] = i;
    });
    new Int32Array(control, indexesOffset, count).set(
      order === 'consecutive' ? Int32Array.from({ length: count }, (_, i) => i) : shuffled(7, count, count),
    );
    new Uint8Array(control, statusesOffset, count).fill(PositionStatus.Pinned);
    return { slotsOffset, pairs: new Int32Array(2 * count) };
  }

  /** Sorted as the mover does it: neighbours become one descriptor. */
  #prepare(slotsOffset: number, count: number, pairs: Int32Array): void {
    const { controlHandle, layout } = this.#started(this.#bare);
    const indexesOffset = slotsOffset + 4 * count;
    const statusesOffset = indexesOffset + 4 * count;
    const { Pinned, Found } = PositionStatus;
    const { numBlocks } = layout;
    this.#nixl.preparePairs(
      controlHandle,
      slotsOffset,
      indexesOffset,
      statusesOffset,
      count,
      Pinned,
      Found,
      numBlocks,
      numBlocks,
      pairs,
    );
  }

  #check(status: number): void {
    if (status !== NixlStatus.Done) throw new Error(`a write failed: ${this.#nixl.statusText(status)}`);
  }

  #started<V>(value: V | undefined): V {
    if (value === undefined) throw new Error('start and addPeer come first');
    return value;
  }
}

serveCalls(new Writer());
