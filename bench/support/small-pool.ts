// One node's index and slots as its workers run them, without threads and without blocks: what a policy keeps.

import type { ControlHandle, Native } from '../../native/index.js';
import { loadNative, unpackMatch } from '../../native/index.js';
import { REPLAY_KEY_BYTES } from '../../src/main/cli/replay/keys.js';
import { WorkerCounters } from '../../src/shared/counters.js';
import { ExtentMemory, planExtent } from '../../src/shared/extent.js';
import { type Layout, computeLayout, workerScratch } from '../../src/shared/layout.js';
import { writeHeader } from '../../src/shared/layout-header.js';
import {
  EXTENT_HEADER_BYTES,
  EXTENT_UNIT_BYTES,
  ExtentFlag,
  ExtentWord,
  Outcome,
} from '../../src/shared/operations.js';
import { SlotTable } from '../../src/shared/slot-state.js';
import { ShardSlots } from '../../src/workers/slots.js';

/** A node's shards in this thread. */
export class SmallPool {
  private readonly native: Native;
  private readonly handle: ControlHandle;
  private readonly layout: Layout;
  private readonly memory: ExtentMemory;
  private readonly shards: ShardSlots[];

  /** @param seed of the hash that puts keys into shards, buckets and ghosts */
  constructor(numBlocks: number, shardCount: number, seed = 0x5eed_5eed_5eed_5eedn) {
    this.native = loadNative();
    this.layout = computeLayout({ numBlocks, blockBytes: 4096, keyBytes: REPLAY_KEY_BYTES, shardCount });
    const control = this.native.mapAnonymous({
      bytes: this.layout.controlBytes,
      huge: false,
      lock: false,
    }).buffer;
    writeHeader(control, this.layout, { seed, incarnation: 1n });
    this.handle = this.native.attachControl(control);
    this.memory = new ExtentMemory(control, this.layout);
    const table = new SlotTable(control, this.layout);
    this.shards = Array.from({ length: shardCount }, (_, shard) => {
      const scratch = workerScratch(this.layout, shard);
      return new ShardSlots(
        table,
        this.memory,
        shard,
        new WorkerCounters(control, this.layout, shard),
        (extent, first, count) => {
          this.native.hashKeys(this.handle, extent, first, count, scratch);
        },
      );
    });
  }

  /** Looks a request up, and stores what it had to compute. @returns its leading hits */
  request(keys: Uint8Array, count: number): number {
    const whole = this.extent(keys, count);
    const { leadingCount } = unpackMatch(this.native.match(this.handle, whole, 0, -1, 0, -1));
    this.native.release(this.handle, whole);
    if (leadingCount === count) return leadingCount;
    const rest = this.extent(keys.subarray(leadingCount * REPLAY_KEY_BYTES), count - leadingCount);
    this.shards.forEach((shard, id) => {
      this.native.match(this.handle, rest, 0, -1, id, id);
      shard.reserve(rest, leadingCount);
    });
    for (const shard of this.shards) shard.publish(rest, false);
    this.native.release(this.handle, rest);
    return leadingCount;
  }

  /** Pins all keys, which must be there, and finds them again as a fetch does, by the lease. @returns ns per round */
  resolveNs(keys: Uint8Array, count: number, rounds: number): number[] {
    const lease = this.extent(keys, count);
    const { hitCount } = unpackMatch(this.native.match(this.handle, lease, 0, -1, 0, -1));
    if (hitCount !== count) throw new Error(`${hitCount} of ${count} keys are there`);
    const samples = Array.from({ length: rounds }, () => {
      const fetch = this.extent(keys, count, lease);
      const start = process.hrtime.bigint();
      const outcome = this.native.resolve(this.handle, fetch);
      const ns = Number(process.hrtime.bigint() - start);
      if (outcome !== Outcome.Ok) throw new Error(`a fetch was not resolved: outcome ${outcome}`);
      return ns;
    });
    this.native.release(this.handle, lease);
    return samples;
  }

  /** @param lease the extent that has the pins of the same keys; the new one lies behind it */
  private extent(keys: Uint8Array, count: number, lease?: number): number {
    const plan = planExtent({
      count,
      keyAreaBytes: count * REPLAY_KEY_BYTES,
      hasIndexes: lease !== undefined,
      leaseCount: lease === undefined ? 0 : 1,
    });
    const { memory } = this;
    const behind = lease === undefined ? 0 : memory.header(lease, ExtentWord.Bytes);
    const extent = this.layout.arenaOffset + Math.ceil(behind / EXTENT_UNIT_BYTES) * EXTENT_UNIT_BYTES;
    memory.words.fill(0, extent / 4, extent / 4 + EXTENT_HEADER_BYTES / 4);
    if (lease !== undefined) {
      memory.setHeader(extent, ExtentWord.LeasesOffset, plan.leasesOffset);
      memory.setHeader(extent, ExtentWord.LeaseCount, 1);
      memory.words[(extent + plan.leasesOffset) / 4] = lease / EXTENT_UNIT_BYTES;
      memory.setHeader(extent, ExtentWord.IndexesOffset, plan.indexesOffset);
      memory.setHeader(extent, ExtentWord.PeerNumBlocks, count);
      for (let i = 0; i < count; i++) memory.words[(extent + plan.indexesOffset) / 4 + i] = i;
    }
    memory.setHeader(extent, ExtentWord.Count, count);
    memory.setHeader(extent, ExtentWord.Flags, lease === undefined ? ExtentFlag.Pin : ExtentFlag.ByLease);
    memory.setHeader(extent, ExtentWord.PinLimit, count);
    memory.setHeader(extent, ExtentWord.KeysOffset, plan.keysOffset);
    memory.setHeader(extent, ExtentWord.KeyStride, REPLAY_KEY_BYTES);
    memory.setHeader(extent, ExtentWord.SlotsOffset, plan.slotsOffset);
    memory.setHeader(extent, ExtentWord.GenerationsOffset, plan.generationsOffset);
    memory.setHeader(extent, ExtentWord.StatusesOffset, plan.statusesOffset);
    memory.setHeader(extent, ExtentWord.Bytes, plan.bytes);
    memory.bytes.fill(0, extent + plan.statusesOffset, extent + plan.statusesOffset + count);
    memory.bytes.set(keys.subarray(0, count * REPLAY_KEY_BYTES), extent + plan.keysOffset);
    return extent;
  }
}
