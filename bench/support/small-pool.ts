// One node's index and slots as its workers run them, without threads and without blocks: what a policy keeps.

import type { ControlHandle, Native } from '../../native/index.js';
import { loadNative, unpackMatch } from '../../native/index.js';
import { REPLAY_KEY_BYTES } from '../../src/main/cli/replay/keys.js';
import { WorkerCounters } from '../../src/shared/counters.js';
import { ExtentMemory, planExtent } from '../../src/shared/extent.js';
import { type Layout, computeLayout, workerScratch } from '../../src/shared/layout.js';
import { writeHeader } from '../../src/shared/layout-header.js';
import { ExtentFlag, ExtentWord } from '../../src/shared/operations.js';
import { SlotTable } from '../../src/shared/slot-state.js';
import type { EvictionPolicy } from '../../src/workers/eviction.js';
import { ShardSlots } from '../../src/workers/slots.js';

export type PolicyMaker = (table: SlotTable, firstSlot: number, slotCount: number) => EvictionPolicy;

/** A node's shards in this thread. */
export class SmallPool {
  private readonly native: Native;
  private readonly handle: ControlHandle;
  private readonly layout: Layout;
  private readonly memory: ExtentMemory;
  private readonly shards: ShardSlots[];

  constructor(numBlocks: number, shardCount: number, makePolicy?: PolicyMaker) {
    this.native = loadNative();
    this.layout = computeLayout({ numBlocks, blockBytes: 4096, keyBytes: REPLAY_KEY_BYTES, shardCount });
    const control = this.native.mapAnonymous({
      bytes: this.layout.controlBytes,
      huge: false,
      lock: false,
    }).buffer;
    writeHeader(control, this.layout, { seed: 0x5eed_5eed_5eed_5eedn, incarnation: 1n });
    this.handle = this.native.attachControl(control);
    this.memory = new ExtentMemory(control, this.layout);
    const table = new SlotTable(control, this.layout);
    this.shards = Array.from({ length: shardCount }, (_, shard) => {
      const scratch = workerScratch(this.layout, shard);
      const share = this.layout.slotsPerShard;
      return new ShardSlots(
        table,
        this.memory,
        shard,
        new WorkerCounters(control, this.layout, shard),
        (extent, first, count) => {
          this.native.hashKeys(this.handle, extent, first, count, scratch);
        },
        makePolicy?.(table, shard * share, share),
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

  private extent(keys: Uint8Array, count: number): number {
    const plan = planExtent({
      count,
      keyAreaBytes: count * REPLAY_KEY_BYTES,
      hasIndexes: false,
      leaseCount: 0,
    });
    const extent = this.layout.arenaOffset;
    const { memory } = this;
    memory.words.fill(0, extent / 4, extent / 4 + 16);
    memory.setHeader(extent, ExtentWord.Count, count);
    memory.setHeader(extent, ExtentWord.Flags, ExtentFlag.Pin);
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
