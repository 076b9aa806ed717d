// A worker of the source dies in the middle of a write that is answered in parts: real peers, ZeroMQ and NIXL.

import { join } from 'node:path';
import { expect, test, vi } from 'vitest';

import type { PeerOptions } from '../../src/main/options.js';
import type { Peer } from '../../src/main/peer.js';
import { WorkerPool } from '../../src/main/shards/pool.js';
import { packageRoot } from '../../src/shared/nixl-dir.js';
import { FaultKind, FaultWord } from '../fixtures/faulty-shard.js';
import { testKeys } from '../fixtures/keys.js';
import { named, startPeer } from '../fixtures/local-peers.js';
import { atRest, missesOf, pull } from '../fixtures/pulls.js';
import { eventually } from '../fixtures/remote-peer.js';

const OPTIONS = {
  blockBytes: 256 << 10,
  poolBytes: 640 * (256 << 10),
  // No limit of pins makes a write of all blocks shorter.
  peerPinShare: 1,
  allPeersPinShare: 1,
  // A replacement of a worker takes seconds on a busy machine; what waits for it is not to end meanwhile.
  queueMs: 60_000,
};

/** A source whose mover can be told to die in the middle of a serve: more than 16 requests of 4 MiB. */
async function startMortal(
  options: PeerOptions,
): Promise<{ source: Peer; diesInServe: () => void; hasDied: () => boolean }> {
  const fault = new Int32Array(new SharedArrayBuffer(FaultWord.Words * 4));
  const start = WorkerPool.start.bind(WorkerPool);
  const spy = vi.spyOn(WorkerPool, 'start').mockImplementationOnce((pool) =>
    start({
      ...pool,
      workerFile: join(packageRoot, 'dist', 'test', 'fixtures', 'faulty-shard.js'),
      task: { ...pool.task, fault: fault.buffer },
    }),
  );
  const source = await startPeer(options).finally(() => {
    spy.mockRestore();
  });
  fault[FaultWord.Shard] = 1;
  return {
    source,
    diesInServe: () => {
      Atomics.store(fault, FaultWord.Kind, FaultKind.ExitInServe);
    },
    hasDied: () => Atomics.load(fault, FaultWord.Kind) === FaultKind.None,
  };
}

test.each([
  { name: 'expected blocks', isLapsed: false },
  { name: 'blocks whose lease lapsed', isLapsed: true },
])(
  'of $name that a worker writes while it dies none is a hit, nothing stays behind, and its replacement writes them',
  async ({ isLapsed }) => {
    const { source, diesInServe, hasDied } = await startMortal({
      ...OPTIONS,
      leaseMs: 50,
    });
    const peer = await startPeer(OPTIONS);
    const count = 320;
    const gone = Buffer.concat([testKeys(3, 1), testKeys(200, 1)]);
    await source.content.storeFilled(testKeys(0, count));
    expect((await peer.connect(source.address)).isReady).toBe(true);
    const evict = async (): Promise<void> => {
      await eventually(
        () => Promise.resolve(source.stats().pins),
        (pins) => pins === 0,
      );
      expect(await source.evict(gone)).toBe(2);
    };
    if (!isLapsed) await evict();
    const options = isLapsed ? { looksUp: true, betweenMs: evict } : ({ expect: 'held' } as const);
    diesInServe();
    expect(await pull(peer, source, 'dies', count, options)).toBe('0'.repeat(count));
    expect(hasDied()).toBe(true);
    await atRest(source, peer);
    expect(peer.stats().slots.ready).toBe(0);
    expect((await peer.probe(testKeys(0, count))).hitCount).toBe(0);
    expect(source.stats().slots.ready).toBe(count - 2);
    expect(await missesOf(peer)).toEqual([`load-failed ${count}`]);

    const came = await pull(peer, source, 'again', count, { expect: 'held' });
    expect(Array.from(came).flatMap((bit, i) => (bit === '0' ? [i] : []))).toEqual([3, 200]);
    expect(source.stats().workerRestarts).toBe(1);
    await atRest(source, peer);
  },
);

test('of a prefill whose second batch a worker writes while it dies nothing is a hit; the next fetch gets all of it', async () => {
  const {
    source: prefiller,
    diesInServe,
    hasDied,
  } = await startMortal({ ...OPTIONS, unclaimedStoreMs: 3_000 });
  const decoder = await startPeer(OPTIONS);
  expect((await decoder.connect(prefiller.address)).isReady).toBe(true);
  const prefill = prefiller.open({ remote_decoder: { kv_request_id: 'pd-dies' } });
  const decode = decoder.open({ remote_prefiller: named(prefiller, 'pd-dies') });
  const loading = decode.load(testKeys(0, 320), { poison: true });
  await prefill.storeFilled(testKeys(0, 10));
  await eventually(
    () => Promise.resolve(prefiller.stats().bytesServed),
    (bytes) => bytes === 10 * OPTIONS.blockBytes,
  );
  diesInServe();
  await prefill.storeFilled(testKeys(10, 310));
  prefill.finish();
  const load = await loading;
  expect(load.presentCount).toBe(0);
  expect(hasDied()).toBe(true);
  load.release();
  decode.finish();
  await atRest(decoder);
  expect(decoder.stats().slots.ready).toBe(0);

  // They are kept for whoever comes for them.
  const again = decoder.open({ remote_prefiller: named(prefiller, 'pd-dies') });
  const second = await again.load(testKeys(0, 320), { poison: true });
  expect(second.presentCount).toBe(320);
  expect(await decoder.content.verify(second)).toBe(0);
  second.release();
  again.finish();
  expect(prefiller.stats().workerRestarts).toBe(1);
  await atRest(prefiller, decoder);
});
