// Partial and speculative fetches between real peers, over ZeroMQ and NIXL, with every byte verified; beside peers that
// do not have the extension, in both directions.

import { expect, onTestFinished, test } from 'vitest';

import type { PeerOptions } from '../../src/main/options.js';
import { FEATURES, type Feature } from '../../src/main/protocol/messages.js';
import { testKeys } from '../fixtures/keys.js';
import { named, startPeer } from '../fixtures/local-peers.js';
import { atRest, missesOf, pull } from '../fixtures/pulls.js';
import { eventually, RemotePeer } from '../fixtures/remote-peer.js';

function without(...features: Feature[]): PeerOptions {
  return { features: FEATURES.filter((feature) => !features.includes(feature)) };
}

const ATTEMPTS: readonly {
  readonly name: string;
  readonly ofSource: PeerOptions;
  readonly ofPeer: PeerOptions;
  readonly came: string;
}[] = [
  { name: 'arrive in part', ofSource: {}, ofPeer: {}, came: '11101111011111111111' },
  {
    name: 'do not arrive from a source without the extension',
    ofSource: without('partial_fetch'),
    ofPeer: {},
    came: '0'.repeat(20),
  },
  {
    name: 'do not arrive at a peer without it',
    ofSource: {},
    ofPeer: without('partial_fetch'),
    came: '0'.repeat(20),
  },
  {
    name: 'arrive in part with checksums',
    ofSource: { checksums: true },
    ofPeer: { checksums: true },
    came: '11101111011111111111',
  },
];

test.each(ATTEMPTS)(
  'blocks whose lease lapsed before the fetch $name',
  async ({ ofSource, ofPeer, came }) => {
    const source = await startPeer({ leaseMs: 50, ...ofSource });
    const peer = await startPeer(ofPeer);
    await source.content.storeFilled(testKeys(0, 20));
    const betweenMs = async (): Promise<void> => {
      await eventually(
        () => Promise.resolve(source.stats().pins),
        (pins) => pins === 0,
      );
      expect(await source.evict(Buffer.concat([testKeys(3, 1), testKeys(8, 1)]))).toBe(2);
    };
    expect(await pull(peer, source, 'lapsed', 20, { looksUp: true, betweenMs })).toBe(came);
    await atRest(source, peer);
    expect(peer.stats().slots.ready).toBe(came.split('1').length - 1);
    expect(await missesOf(peer)).toEqual([came.includes('1') ? 'not-held 2' : 'load-failed 20']);
  },
);

test('of a block that is damaged and one that is gone, with checksums, both are misses and the others arrive', async () => {
  const [source, peer] = [
    await startPeer({ checksums: true, leaseMs: 50 }),
    await startPeer({ checksums: true }),
  ];
  await source.content.storeFilled(testKeys(0, 10));
  const pinned = await source.pin(testKeys(7, 1));
  const block = pinned.block(0);
  if (block) block[100] ^= 0xff;
  pinned.release();
  const betweenMs = async (): Promise<void> => {
    await eventually(
      () => Promise.resolve(source.stats().pins),
      (pins) => pins === 0,
    );
    await source.evict(testKeys(2, 1));
  };
  expect(await pull(peer, source, 'damaged', 10, { looksUp: true, betweenMs })).toBe('1101111011');
  expect(await missesOf(peer)).toEqual(expect.arrayContaining(['checksum 1', 'not-held 1']));
  await atRest(source, peer);
});

test.each([
  { name: 'gives what was stored', ofDecoder: {}, present: 10 },
  { name: 'fails for a peer without partial fetches', ofDecoder: without('partial_fetch'), present: 0 },
])('a prefill that ends with fewer blocks $name at once', async ({ ofDecoder, present }) => {
  // The fetch has to come in this time; what nobody claims is gone after it.
  const [prefiller, decoder] = [await startPeer({ unclaimedStoreMs: 3_000 }), await startPeer(ofDecoder)];
  expect((await decoder.connect(prefiller.address)).isReady).toBe(true);
  const prefill = prefiller.open({ remote_decoder: { kv_request_id: 'pd' } });
  const decode = decoder.open({ remote_prefiller: named(prefiller, 'pd') });
  const loading = decode.load(testKeys(0, 20), { poison: true });
  await prefill.storeFilled(testKeys(0, 10));
  prefill.finish();
  const load = await loading;
  expect(load.presentCount).toBe(present);
  expect(await decoder.content.verify(load)).toBe(0);
  load.release();
  decode.finish();
  await atRest(prefiller, decoder);
});

const HELD: readonly {
  readonly name: string;
  readonly held: readonly [number, number][];
  readonly came: string;
}[] = [
  { name: 'all', held: [[0, 12]], came: '111111111111' },
  {
    name: 'some',
    held: [
      [0, 3],
      [7, 2],
    ],
    came: '111000011000',
  },
  { name: 'none', held: [], came: '000000000000' },
];

test.each(HELD)(
  'of expected blocks, $name that the source holds arrive without a lookup',
  async ({ held, came }) => {
    const [source, peer] = [await startPeer(), await startPeer()];
    for (const [first, count] of held) await source.content.storeFilled(testKeys(first, count));
    expect((await peer.connect(source.address)).isReady).toBe(true);
    expect(await pull(peer, source, 'expected', 12, { expect: 'held' })).toBe(came);
    expect(await missesOf(peer)).toEqual([]);
    expect(await peer.metrics.metrics()).toMatch(/kvpeer_lookup_seconds_count 0/);
    await atRest(source, peer);
    expect(source.stats().bytesServed).toBe((came.split('1').length - 1) * 4096);
  },
);

test.each([
  ['the source', without('speculative_fetch'), {}],
  ['the peer', {}, without('speculative_fetch')],
  ['either, as with a plain one', { features: [] }, { features: [] }],
])(
  'expected blocks are looked up where %s does not have speculative fetches',
  async (_, ofSource, ofPeer) => {
    const [source, peer] = [await startPeer(ofSource), await startPeer(ofPeer)];
    await source.content.storeFilled(testKeys(0, 5));
    expect((await peer.connect(source.address)).isReady).toBe(true);
    expect(await pull(peer, source, 'expected', 12, { expect: 'held' })).toBe('111110000000');
    expect(await peer.metrics.metrics()).toMatch(/kvpeer_lookup_seconds_count 1/);
    await atRest(source, peer);
  },
);

test('expected blocks are written up to what a peer may pin', async () => {
  const source = await startPeer({ poolBytes: 64 * 4096, peerPinShare: 0.25 });
  const peer = await startPeer();
  await source.content.storeFilled(testKeys(0, 30));
  expect((await peer.connect(source.address)).isReady).toBe(true);
  expect(await pull(peer, source, 'many', 30, { expect: 'held' })).toBe('1'.repeat(16) + '0'.repeat(14));
  await atRest(source, peer);
});

test('many loads of expected blocks at once each get their own', async () => {
  const [source, peer] = [await startPeer({ peerPinShare: 1, allPeersPinShare: 1 }), await startPeer()];
  await source.content.storeFilled(testKeys(0, 400));
  expect((await peer.connect(source.address)).isReady).toBe(true);
  const requests = Array.from({ length: 40 }, (_, i) =>
    peer.open({ remote_kv_source: named(source, `many-${i}`) }),
  );
  const loads = await Promise.all(
    requests.map((request, i) => request.load(testKeys(i * 12, 12), { expect: 'held', poison: true })),
  );
  for (const [i, load] of loads.entries()) {
    // Blocks 400 and above are not there.
    expect(load.presentCount).toBe(Math.max(0, Math.min(12, 400 - i * 12)));
    expect(await peer.content.verify(load)).toBe(0);
    load.release();
  }
  for (const request of requests) request.finish();
  await atRest(source, peer);
});

test('a source that dies while it writes expected blocks leaves nothing pinned, and what is here is whole', async () => {
  const blockBytes = 256 << 10;
  const source = await RemotePeer.start({ poolBytes: 1400 * blockBytes, blockBytes });
  onTestFinished(() => source.destroy());
  const peer = await startPeer({
    ...{ poolBytes: 400 * blockBytes, blockBytes, heartbeatMs: 100, heartbeatTimeoutMs: 400 },
    abortAckMs: 200,
  });
  await source.call('storeKeys', testKeys(0, 300));
  expect((await peer.connect(source.address)).isReady).toBe(true);
  const request = peer.open({ remote_kv_source: source.named('dies') });
  const load = await request.load(testKeys(0, 300), {
    expect: 'held',
    onStarted: () => {
      source.kill('SIGKILL');
    },
  });
  expect(await peer.content.verify(load)).toBe(0);
  load.release();
  request.finish();
  await atRest(peer);
});
