// Shard workers die while KV events are on: what a router knows is what is here, whatever was on its way.

import { afterEach, expect, it } from 'vitest';

import { BlockCatalog } from '../../src/main/events/catalog.js';
import { ResidencyFeed } from '../../src/main/events/residency.js';
import type { StartedShards } from '../../src/main/shards/start.js';
import { RECORD_KEY, recordOffset } from '../../src/shared/layout.js';
import { Phase, phaseOf, SlotTable } from '../../src/shared/slot-state.js';
import { nameOf, RouterIndex } from '../fixtures/router-index.js';
import {
  ended,
  KEY_BYTES,
  keysOf,
  ok,
  quiet,
  range,
  startTestShards,
  store,
} from '../helpers/running-shards.js';

const HASH_BYTES = KEY_BYTES - 4;

let shards: StartedShards | undefined;
afterEach(async () => {
  await shards?.close();
  shards = undefined;
});

it('a router knows exactly what is READY after each death of a worker in the middle of stores and evictions', async () => {
  const node = await startTestShards({ blocks: 600, marksResidency: true });
  shards = node;
  if (node.residencyMarks === undefined) throw new Error('no marks');
  const table = new SlotTable(node.memory.control, node.memory.layout);
  const feed = new ResidencyFeed(table, node.residencyMarks);
  const catalog = new BlockCatalog({ announcesUnknown: false, tokensPerBlock: 1, maxAbsent: 100_000 });
  const router = new RouterIndex();
  const seen = new Map<number, Buffer>();
  let looks = 0;
  const look = (): void => {
    if (!feed.hasChanged()) return;
    looks += 1;
    feed.take(Infinity, {
      onArrived: (slot, key) => {
        seen.set(slot, key.subarray(0, HASH_BYTES));
        catalog.arrived(key.subarray(0, HASH_BYTES));
      },
      onLeft: (slot) => {
        const hash = seen.get(slot);
        if (hash === undefined) throw new Error(`nothing was in slot ${slot}`);
        seen.delete(slot);
        catalog.left(hash);
      },
    });
    while (catalog.hasNews) router.take(catalog.takeEvents(1000));
  };
  node.client.inFlight.onDrained = look;

  const describe = (ids: readonly number[]): void => {
    const { bytes } = keysOf(ids);
    ids.forEach((id, i) => {
      catalog.describe(Buffer.from(bytes.subarray(i * KEY_BYTES, i * KEY_BYTES + HASH_BYTES)), {
        tokenIds: Uint32Array.of(id),
        parent: undefined,
        loraName: undefined,
        extraKeys: undefined,
      });
    });
  };
  const ready = (): string[] => {
    const names: string[] = [];
    for (let slot = 0; slot < node.memory.layout.numBlocks; slot += 1) {
      if (phaseOf(table.state(slot)) !== Phase.Ready) continue;
      const at = recordOffset(node.memory.layout, slot) + RECORD_KEY;
      names.push(nameOf(table.bytes.subarray(at, at + HASH_BYTES)));
    }
    return names.toSorted();
  };

  for (let round = 0; round < 4; round += 1) {
    const first = round * 10_000;
    // More than the pool holds: each store evicts what the one before brought.
    for (let piece = 0; piece < 4; piece += 1) {
      const ids = range(first + piece * 300, 300);
      describe(ids);
      await store(node, ids);
    }
    const pending = range(first + 5000, 400);
    describe(pending);
    const reservation = ended((done: Parameters<typeof node.client.reserve>[1]) => {
      node.client.reserve(keysOf(pending), done);
    });
    for (let turn = 0; turn < round * 3; turn += 1) await new Promise((resolve) => setImmediate(resolve));
    await node.workers.kill(round % 2);
    const { result } = await reservation;
    if (result !== undefined) {
      await ok<undefined>((done) => {
        node.client.abandon(result, { quarantine: false }, done);
      });
    }
    // The replacement's first operation is the rebuild of its shard; nothing else is asked of it.
    while (node.restartCount <= round || !node.workers.isUp(round % 2)) {
      await new Promise((resolve) => setImmediate(resolve));
    }
    await quiet(node);
    expect(feed.hasChanged()).toBe(false);
    expect(router.hashes()).toEqual(ready());
    expect(router.hashes().length).toBeGreaterThan(0);
  }
  expect(looks).toBeGreaterThan(4);
});
