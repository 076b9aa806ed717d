// Speculative and partial fetches from a source that evicts all the time: what a load gives out is whole, nothing stays.

import { randomInt } from 'node:crypto';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { expect, test } from 'vitest';

import type { Peer } from '../../src/main/peer.js';
import { testKey, testKeys } from '../fixtures/keys.js';
import { named, startPeer } from '../fixtures/local-peers.js';
import { eventually } from '../fixtures/remote-peer.js';

const KEY_COUNT = 300;

/** Different keys, in any order; some of them are never stored. */
function someKeys(count: number): Buffer {
  const ids = new Set<number>();
  while (ids.size < count) ids.add(randomInt(KEY_COUNT + 20));
  return Buffer.concat([...ids].map(testKey));
}

async function pull(peer: Peer, source: Peer, id: string, isLookedUp: boolean): Promise<void> {
  const request = peer.open({ remote_kv_source: named(source, id) });
  const keys = someKeys(1 + randomInt(40));
  if (isLookedUp) await request.lookup(keys);
  const loading = request.load(keys, { poison: true, ...(isLookedUp ? {} : { expect: 'held' }) });
  // Some are given up in the middle.
  if (randomInt(8) === 0) request.finish();
  const load = await loading;
  expect(await peer.content.verify(load)).toBe(0);
  load.release();
  request.finish();
  if (randomInt(4) === 0) await peer.evict(keys);
}

test.each([false, true])(
  'every block that comes from a source under eviction pressure is whole, and nothing stays pinned (checksums: %s)',
  async (checksums) => {
    const source = await startPeer({ poolBytes: 96 * 4096, leaseMs: 30, peerPinShare: 0.4, checksums });
    const peers = [
      await startPeer({ poolBytes: 400 * 4096, checksums }),
      await startPeer({ poolBytes: 200 * 4096, checksums }),
    ];
    for (const peer of peers) expect((await peer.connect(source.address)).isReady).toBe(true);
    const pulling = Promise.all(
      peers.flatMap((peer, number) =>
        Array.from({ length: 8 }, async (_, lane) => {
          for (let i = 0; i < 20; i++) await pull(peer, source, `${number}-${lane}-${i}`, i % 2 === 0);
        }),
      ),
    );
    let isPulling = true;
    const store = async (): Promise<void> => {
      while (isPulling) {
        await source.content.storeFilled(testKeys(randomInt(KEY_COUNT), 1 + randomInt(20)));
        await nextTurn();
      }
    };
    const storing = store();
    try {
      await pulling;
    } finally {
      isPulling = false;
      await storing;
    }
    expect(source.stats().evictions).toBeGreaterThan(0);
    expect(peers[0].stats().bytesPulled).toBeGreaterThan(0);
    for (const peer of [source, ...peers]) {
      await eventually(
        () => Promise.resolve(peer.stats()),
        ({ pins, leases, slots }) =>
          pins === 0 && leases === 0 && slots.writing === 0 && slots.quarantined === 0,
      );
    }
  },
);
