// Two and three real peers, every mode, over ZeroMQ and NIXL, with every byte verified.

import { expect, test } from 'vitest';
import { Dealer } from 'zeromq';

import { loadZmq } from '../../native/zmq.js';
import type { Peer } from '../../src/main/peer.js';
import { FEATURES } from '../../src/main/protocol/messages.js';
import { writeLookup } from '../../src/main/protocol/write.js';
import { KEY_BYTES, testKeys } from '../fixtures/keys.js';
import { named, startPeer } from '../fixtures/local-peers.js';
import { eventually } from '../fixtures/remote-peer.js';
import { LogLines } from '../helpers/log-lines.js';

/** Loads with poisoned slots and verifies what came. */
async function pull(
  peer: Peer,
  request: ReturnType<Peer['open']>,
  first: number,
  count: number,
): Promise<{ present: number; pulled: number }> {
  const load = await request.load(testKeys(first, count), { poison: true });
  expect(await peer.content.verify(load)).toBe(0);
  const result = { present: load.presentCount, pulled: load.pulledCount };
  load.release();
  return result;
}

/** Lookups whose memory is still kept, of all nodes of this process. */
const keptMessageCount = (): number => loadZmq().keptMessageCount();

async function atRest(...peers: Peer[]): Promise<void> {
  for (const peer of peers) {
    await eventually(
      () => Promise.resolve(peer.stats()),
      ({ pins, leases, slots }) =>
        keptMessageCount() === 0 &&
        pins === 0 &&
        leases === 0 &&
        slots.writing === 0 &&
        slots.quarantined === 0,
    );
  }
}

test('remote_kv_source: all hit, none hit, some hit; one lookup, the leading hits pulled and verified', async () => {
  const [a, b] = [await startPeer(), await startPeer()];
  await a.content.storeFilled(testKeys(0, 100));
  for (const { first, count, hits } of [
    { first: 0, count: 100, hits: 100 },
    { first: 1000, count: 10, hits: 0 },
    { first: 90, count: 20, hits: 10 },
  ]) {
    const request = b.open({ remote_kv_source: named(a, `source-${first}`) });
    const found = await request.lookup(testKeys(first, count));
    expect(found.leadingCount).toBe(hits);
    // Blocks 90 to 99 came with the first round and are here already.
    const { present, pulled } = await pull(b, request, first, found.leadingCount);
    expect(present).toBe(hits);
    expect(pulled).toBe(first === 0 ? 100 : 0);
    request.finish();
  }
  await atRest(a, b);
  expect(b.stats().bytesPulled).toBe(100 * 4096);
  expect(a.stats().bytesServed).toBe(100 * 4096);
});

test('keys in lists go between peers of which one does not take them packed, either way', async () => {
  const features = FEATURES.filter((feature) => feature !== 'packed_keys');
  const [a, b] = [await startPeer({ features }), await startPeer()];
  await a.content.storeFilled(testKeys(0, 100));
  await b.content.storeFilled(testKeys(1000, 100));
  for (const { from, to, first } of [
    { from: a, to: b, first: 0 },
    { from: b, to: a, first: 1000 },
  ]) {
    const request = to.open({ remote_kv_source: named(from, `lists-${first}`) });
    expect((await request.lookup(testKeys(first, 120))).leadingCount).toBe(100);
    expect(await pull(to, request, first, 100)).toEqual({ present: 100, pulled: 100 });
    request.finish();
  }
  await atRest(a, b);
});

test('a block that was pulled is served on to a third peer', async () => {
  const [a, b, c] = [await startPeer(), await startPeer(), await startPeer()];
  await a.content.storeFilled(testKeys(0, 20));
  const first = b.open({ remote_kv_source: named(a, 'hop-1') });
  await first.lookup(testKeys(0, 20));
  expect(await pull(b, first, 0, 20)).toEqual({ present: 20, pulled: 20 });
  const second = c.open({ remote_kv_source: named(b, 'hop-2') });
  await second.lookup(testKeys(0, 20));
  expect(await pull(c, second, 0, 20)).toEqual({ present: 20, pulled: 20 });
  first.finish();
  second.finish();
  await atRest(a, b, c);
});

test('both peers pull from each other at once over one session', async () => {
  const [a, b] = [await startPeer(), await startPeer()];
  await a.content.storeFilled(testKeys(0, 200));
  await b.content.storeFilled(testKeys(1000, 200));
  const toB = b.open({ remote_kv_source: named(a, 'to-b') });
  const toA = a.open({ remote_kv_source: named(b, 'to-a') });
  await Promise.all([toB.lookup(testKeys(0, 200)), toA.lookup(testKeys(1000, 200))]);
  const results = await Promise.all([pull(b, toB, 0, 200), pull(a, toA, 1000, 200)]);
  expect(results).toEqual([
    { present: 200, pulled: 200 },
    { present: 200, pulled: 200 },
  ]);
  expect(a.stats().sessions.ready).toBe(1);
  expect(b.stats().sessions.ready).toBe(1);
  toA.finish();
  toB.finish();
  await atRest(a, b);
});

test('prefill and decode: the fetch comes before the blocks are stored, in several batches', async () => {
  const [prefiller, decoder] = [await startPeer(), await startPeer()];
  const prefill = prefiller.open({ remote_decoder: { kv_request_id: 'pd-1' } });
  const decode = decoder.open({ remote_prefiller: named(prefiller, 'pd-1') });
  expect((await decode.lookup(testKeys(0, 20))).leadingCount).toBe(20);
  const pulling = pull(decoder, decode, 0, 20);
  await prefill.storeFilled(testKeys(0, 5));
  await prefill.storeFilled(testKeys(5, 15));
  prefill.finish();
  expect(await pulling).toEqual({ present: 20, pulled: 20 });
  decode.finish();
  await atRest(prefiller, decoder);
});

test('prefill and decode: the blocks are stored and the prefill is over before the fetch comes', async () => {
  const [prefiller, decoder] = [await startPeer(), await startPeer()];
  const prefill = prefiller.open({ remote_decoder: { kv_request_id: 'pd-2' } });
  await prefill.storeFilled(testKeys(0, 20));
  prefill.finish();
  expect(prefiller.stats().pins).toBe(20);
  const decode = decoder.open({ remote_prefiller: named(prefiller, 'pd-2') });
  expect(await pull(decoder, decode, 0, 20)).toEqual({ present: 20, pulled: 20 });
  decode.finish();
  await atRest(prefiller, decoder);
});

test('stored blocks that nobody fetches are released after unclaimedStoreMs', async () => {
  const peer = await startPeer({ unclaimedStoreMs: 100 });
  const prefill = peer.open({ remote_decoder: { kv_request_id: 'nobody' } });
  await prefill.storeFilled(testKeys(0, 10));
  prefill.finish();
  expect(peer.stats().pins).toBe(10);
  await atRest(peer);
});

test('the legal pair: pulls from a source and holds for a decoder, and finishing ends both ids', async () => {
  const [source, middle, decoder] = [await startPeer(), await startPeer(), await startPeer()];
  await source.content.storeFilled(testKeys(0, 30));
  const request = middle.open({
    remote_kv_source: named(source, 'pair-source'),
    remote_decoder: { kv_request_id: 'pair-decoder' },
  });
  expect((await request.lookup(testKeys(0, 40))).leadingCount).toBe(30);
  expect(await pull(middle, request, 0, 30)).toEqual({ present: 30, pulled: 30 });
  // The blocks that are READY already count as stored by the request.
  expect(await request.storeFilled(testKeys(0, 40))).toEqual({
    storedCount: 10,
    presentCount: 30,
    notStoredCount: 0,
  });
  request.finish();
  const decode = decoder.open({ remote_prefiller: named(middle, 'pair-decoder') });
  expect(await pull(decoder, decode, 0, 40)).toEqual({ present: 40, pulled: 40 });
  decode.finish();
  await atRest(source, middle, decoder);
});

test('requests for the same blocks at once: one pulls, the others join', async () => {
  const [a, b] = [await startPeer(), await startPeer()];
  await a.content.storeFilled(testKeys(0, 50));
  const requests = [0, 1, 2, 3].map((i) => b.open({ remote_kv_source: named(a, `join-${i}`) }));
  await Promise.all(requests.map((request) => request.lookup(testKeys(0, 50))));
  const results = await Promise.all(requests.map((request) => pull(b, request, 0, 50)));
  expect(results.map(({ present }) => present)).toEqual([50, 50, 50, 50]);
  expect(results.reduce((sum, { pulled }) => sum + pulled, 0)).toBe(50);
  expect(b.stats().bytesPulled).toBe(50 * 4096);
  for (const request of requests) request.finish();
  await atRest(a, b);
});

test('a lookup that is not followed by a load leaves nothing pinned once the request is finished', async () => {
  const [a, b] = [await startPeer(), await startPeer()];
  await a.content.storeFilled(testKeys(0, 50));
  const request = b.open({ remote_kv_source: named(a, 'probe-only') });
  await request.lookup(testKeys(0, 50));
  expect(a.stats().pins).toBe(50);
  request.finish();
  await atRest(a, b);
});

test('small pools evict and stay correct: every pulled byte verified, nothing pinned at the end', async () => {
  const small = { poolBytes: 128 * 4096, peerPinShare: 0.5 };
  const [a, b] = [await startPeer(small), await startPeer(small)];
  for (let round = 0; round < 10; round++) {
    await a.content.storeFilled(testKeys(round * 60, 60));
    const request = b.open({ remote_kv_source: named(a, `small-${round}`) });
    const hits = await request.lookup(testKeys(round * 60, 60));
    // A few bucket pairs of so small an index fill up and give a block away.
    expect(hits.hitCount).toBeGreaterThan(50);
    const { present, pulled } = await pull(b, request, round * 60, 60);
    expect(present).toBe(pulled);
    expect(pulled).toBeGreaterThan(45);
    request.finish();
    // What is still pinned at the producer leaves the next blocks no room.
    await atRest(a, b);
  }
  expect(a.stats().evictions).toBeGreaterThan(0);
  expect(b.stats().evictions).toBeGreaterThan(0);
});

test('blocks of other bytes per block are refused on both sides, and no lookup waits for its time', async () => {
  const hour = { lookupMs: 3_600_000 };
  const [a, b] = [await startPeer(hour), await startPeer({ ...hour, blockBytes: 8192 })];
  await a.content.storeFilled(testKeys(0, 5));
  const request = b.open({ remote_kv_source: named(a, 'mismatch') });
  const hits = await request.lookup(testKeys(0, 5));
  expect(hits.hitCount).toBe(0);
  request.finish();
  for (const peer of [a, b]) {
    expect(await peer.metrics.metrics()).toMatch(/kvpeer_rejections_total\{reason="mismatch_block_len"\} 1/);
  }
});

test('a peer that is not there costs a miss, at once, and the next lookup too while it is left alone', async () => {
  const [a, b] = [await startPeer(), await startPeer()];
  const gone = named(a, 'gone');
  await a.close({ drainMs: 0 });
  const request = b.open({ remote_kv_source: gone });
  expect((await request.lookup(testKeys(0, 5))).hitCount).toBe(0);
  expect((await request.lookup(testKeys(5, 5))).hitCount).toBe(0);
  request.finish();
  await atRest(b);
});

test('without a data plane lookups work and loads end as misses', async () => {
  const none = { dataPlane: 'none' } as const;
  const [a, b] = [await startPeer(none), await startPeer(none)];
  await a.content.storeFilled(testKeys(0, 10));
  const request = b.open({ remote_kv_source: named(a, 'none') });
  expect((await request.lookup(testKeys(0, 10))).leadingCount).toBe(10);
  expect(await pull(b, request, 0, 10)).toEqual({ present: 0, pulled: 0 });
  request.finish();
  await atRest(a, b);
});

test('a peer without a data plane is refused by one that has it, with a word that says so', async () => {
  const log = new LogLines();
  const [peer, none] = [await startPeer({ logger: log.logger }), await startPeer({ dataPlane: 'none' })];
  expect((await peer.connect(none.address)).isReady).toBe(false);
  expect(log.lines('warn')).toContainEqual(
    expect.objectContaining({
      peerId: none.address,
      msg: expect.stringContaining('the peer runs without a data plane') as string,
    }),
  );
});

test('the step-driven tier: lookup per key, one message per step, load, store, each job finished once', async () => {
  const [a, b] = [await startPeer(), await startPeer()];
  await a.content.storeFilled(testKeys(0, 10));
  const { tier } = b;
  tier.onNewRequest({ requestId: 'r1', kvTransferParams: { remote_kv_source: named(a, 'step-1') } });
  const keys = Array.from({ length: 12 }, (_, i) => testKeys(i, 1));
  expect(keys.map((key) => tier.lookup(key, 'r1'))).toEqual(keys.map(() => null));
  tier.onScheduleEnd();
  const answers = await eventually(
    () => Promise.resolve(keys.map((key) => tier.lookup(key, 'r1'))),
    (list) => !list.includes(null),
  );
  expect(answers).toEqual(keys.map((_, i) => i < 10));
  tier.submitLoad({ jobId: 1, requestId: 'r1', keys: testKeys(0, 10) });
  tier.submitStore({ jobId: 2, requestId: 'r1', keys: testKeys(10, 2), blocks: Buffer.alloc(2 * 4096, 1) });
  const finished = await eventually(
    () => Promise.resolve(collected.push(...tier.getFinished()) && collected.length),
    (count) => count === 2,
  );
  expect(finished).toBe(2);
  expect(
    collected.map(({ jobId, success }) => ({ jobId, success })).sort((x, y) => x.jobId - y.jobId),
  ).toEqual([
    { jobId: 1, success: true },
    { jobId: 2, success: true },
  ]);
  tier.releaseJob(1);
  tier.onRequestFinished('r1');
  await atRest(a, b);
});

const collected: { readonly jobId: number; readonly success: boolean }[] = [];

test('an illegal combination is rejected where the request enters, with both keys named', async () => {
  const peer = await startPeer({ dataPlane: 'none' });
  const other = { kv_request_id: 'x', remote_host: '127.0.0.1', remote_port: 1 };
  for (const params of [
    { remote_prefiller: other, remote_decoder: { kv_request_id: 'y' } },
    { remote_prefiller: other, remote_kv_source: { ...other, kv_request_id: 'y' } },
  ]) {
    expect(() => peer.open(params)).toThrow(
      expect.objectContaining({
        code: 'KVPEER_INVALID_PARAMS',
        message: expect.stringMatching(/remote_prefiller/) as string,
      }),
    );
  }
});

test('with checksums on both sides a damaged block is a miss here and counted, and the others arrive', async () => {
  const [a, b] = [await startPeer({ checksums: true }), await startPeer({ checksums: true })];
  await a.content.storeFilled(testKeys(0, 20));
  const pinned = await a.pin(testKeys(7, 1));
  const block = pinned.block(0);
  expect(block).toBeDefined();
  if (block) block[100] ^= 0xff;
  pinned.release();
  const request = b.open({ remote_kv_source: named(a, 'damaged') });
  expect((await request.lookup(testKeys(0, 20))).leadingCount).toBe(20);
  const load = await request.load(testKeys(0, 20));
  expect(load.presentCount).toBe(19);
  expect(load.slots[7]).toBe(-1);
  expect(await b.content.verify(load)).toBe(0);
  load.release();
  request.finish();
  expect(await b.metrics.metrics()).toMatch(/kvpeer_misses_total\{reason="checksum"\} 1/);
  await atRest(a, b);
  expect(b.stats().slots.ready).toBe(19);
});

test('checksums that only one side keeps are neither sent nor asked for', async () => {
  const [a, b] = [await startPeer({ checksums: true }), await startPeer()];
  await a.content.storeFilled(testKeys(0, 5));
  const request = b.open({ remote_kv_source: named(a, 'one-sided') });
  await request.lookup(testKeys(0, 5));
  expect(await pull(b, request, 0, 5)).toEqual({ present: 5, pulled: 5 });
  request.finish();
  await atRest(a, b);
});

test('zero-copy writers: reserve, write in place, commit; cancelled and second commits leave nothing', async () => {
  const [a, b] = [await startPeer(), await startPeer()];
  const reservation = await a.reserve(testKeys(0, 4));
  for (let i = 0; i < 4; i++) reservation.block(i)?.fill(i + 1);
  expect((await a.probe(testKeys(0, 4))).hitCount).toBe(0);
  expect(await reservation.commit()).toEqual({ storedCount: 4, presentCount: 0, notStoredCount: 0 });
  await expect(reservation.commit()).rejects.toMatchObject({ code: 'KVPEER_INVALID_ARGUMENT' });
  const cancelled = await a.reserve(testKeys(4, 4));
  await cancelled.cancel();
  expect((await a.probe(testKeys(0, 8))).hitCount).toBe(4);
  const request = b.open({ remote_kv_source: named(a, 'zero-copy') });
  await request.lookup(testKeys(0, 4));
  const load = await request.load(testKeys(0, 4));
  expect([0, 1, 2, 3].map((i) => load.block(i)?.at(-1))).toEqual([1, 2, 3, 4]);
  load.release();
  request.finish();
  await atRest(a, b);
});

test('pinned blocks outlive any amount of storing; released ones can be evicted', async () => {
  const peer = await startPeer({ poolBytes: 64 * 4096 });
  await peer.content.storeFilled(testKeys(0, 8));
  const pinned = await peer.pin(testKeys(0, 8));
  expect(pinned.presentCount).toBe(8);
  for (let i = 1; i < 10; i++) await peer.content.storeFilled(testKeys(i * 100, 32));
  expect((await peer.probe(testKeys(0, 8))).hitCount).toBe(8);
  expect(await peer.evict(testKeys(0, 8))).toBe(0);
  expect(await peer.content.verify(pinned)).toBe(0);
  pinned.release();
  expect(() => {
    pinned.release();
  }).toThrow(/released already/);
  expect(await peer.evict(testKeys(0, 8))).toBe(8);
  expect((await peer.probe(testKeys(0, 8))).hitCount).toBe(0);
  await atRest(peer);
});

test('wrong arguments are named: keys of a wrong length, too few bytes for the keys, a closed peer', async () => {
  const peer = await startPeer({ dataPlane: 'none' });
  await expect(Promise.resolve().then(() => peer.probe(new Uint8Array(35)))).rejects.toMatchObject({
    code: 'KVPEER_INVALID_ARGUMENT',
  });
  await expect(peer.store(testKeys(0, 2), new Uint8Array(4096))).rejects.toThrow(/2 x 4096 bytes for 2 keys/);
  await peer.close();
  expect(() => peer.open()).toThrow(expect.objectContaining({ code: 'KVPEER_CLOSED' }));
});

test('an empty list of keys has an empty answer everywhere, and bytes that are no Uint8Array are refused', async () => {
  const peer = await startPeer({ dataPlane: 'none' });
  const request = peer.open();
  const none = new Uint8Array(0);
  const nothingStored = { storedCount: 0, presentCount: 0, notStoredCount: 0 };
  expect(await peer.probe(none)).toMatchObject({ count: 0, hitCount: 0 });
  expect(await request.lookup(none)).toMatchObject({ count: 0, hitCount: 0 });
  expect(await peer.store(none, none)).toEqual(nothingStored);
  expect(await peer.evict(none)).toBe(0);
  for (const pinned of [await peer.pin(none), await request.load(none)]) {
    expect(pinned).toMatchObject({ count: 0, presentCount: 0 });
    expect(pinned.block(0)).toBeUndefined();
    expect(await peer.content.verify(pinned)).toBe(0);
    pinned.release();
  }
  expect(await (await peer.reserve(none)).commit()).toEqual(nothingStored);
  await (await request.reserve(none)).cancel();

  const code = 'KVPEER_INVALID_ARGUMENT';
  const floats = new Float64Array(512) as unknown as Uint8Array;
  await expect(peer.store(testKeys(0, 1), floats)).rejects.toMatchObject({
    code,
    message: expect.stringContaining('got [object Float64Array]') as string,
  });
  for (const wrong of [undefined, null, 'key', [1], floats.buffer]) {
    await expect(request.load(wrong as unknown as Uint8Array)).rejects.toMatchObject({ code });
    await expect(peer.store(testKeys(0, 1), wrong as unknown as Uint8Array)).rejects.toMatchObject({ code });
  }
  request.finish();
  await atRest(peer);
});

test('lookups that are given up before their answers, and those of strangers, leave no message behind', async () => {
  const [a, b] = [await startPeer(), await startPeer()];
  await a.content.storeFilled(testKeys(0, 1000));
  const given: Promise<unknown>[] = [];
  for (let i = 0; i < 60; i++) {
    const request = b.open({ remote_kv_source: named(a, `given-up-${i}`) });
    given.push(request.lookup(testKeys(0, 1000)).catch(() => undefined));
    if (i % 3 === 0) await new Promise((resolve) => setImmediate(resolve));
    request.finish();
  }
  const stranger = new Dealer({ routingId: '127.0.0.1:7999', linger: 0 });
  stranger.connect(`tcp://${a.address}`);
  const frame = writeLookup('nobody', testKeys(0, 1000), KEY_BYTES, 0);
  for (let i = 0; i < 20; i++) await stranger.send(frame);
  await Promise.all(given);
  await atRest(a, b);
  // Parked at the producer, which is writing these blocks.
  const writing = await a.reserve(testKeys(5000, 4));
  const parked = b.open({ remote_kv_source: named(a, 'parked') });
  const parkedAnswer = parked.lookup(testKeys(5000, 4)).catch(() => undefined);
  await eventually(
    () => Promise.resolve(keptMessageCount()),
    (count) => count === 1,
  );
  parked.finish();
  await eventually(
    () => Promise.resolve(keptMessageCount()),
    (count) => count === 0,
  );
  await Promise.all([parkedAnswer, writing.cancel()]);
  // The session ends with lookups under way.
  const last = b.open({ remote_kv_source: named(a, 'last') });
  const answer = last.lookup(testKeys(0, 1000)).catch(() => undefined);
  await b.close();
  await answer;
  stranger.close();
  await atRest(a);
});

test('a block that is stored while another writer has it in hand is written when that one gives up', async () => {
  const peer = await startPeer();
  const keys = testKeys(0, 10);
  const reservation = await peer.reserve(keys.subarray(0, 6 * peer.keyBytes));
  const storing = peer.content.storeFilled(keys);
  await reservation.cancel();
  expect(await storing).toEqual({ storedCount: 10, presentCount: 0, notStoredCount: 0 });
  const pinned = await peer.pin(keys);
  expect([pinned.presentCount, await peer.content.verify(pinned)]).toEqual([10, 0]);
  pinned.release();
  await expect.poll(() => peer.stats()).toMatchObject({ pins: 0, slots: { writing: 0, ready: 10 } });
});
