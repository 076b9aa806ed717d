// A request at its peer: what it does when it is finished, or meets an error, in the middle of something.

import { afterEach, beforeEach, expect, test } from 'vitest';
import { Blocks } from '../../src/main/blocks.js';
import { allocateIds, parseParamsOrThrow } from '../../src/main/params/index.js';
import type { Feature } from '../../src/main/protocol/messages.js';
import { Request } from '../../src/main/request.js';
import { packedKeys } from '../fixtures/fake-shards.js';
import { keysOf } from '../fixtures/producer-harness.js';
import type { FakeNode } from '../fixtures/session-network.js';
import { FakeNetwork } from '../fixtures/session-network.js';

const HERE = '10.0.0.1:5710';
const SOURCE = '10.0.0.2:5710';
const BUSY = { code: 'KVPEER_BUSY' } as const;

let network: FakeNetwork;
let here: FakeNode;
let source: FakeNode;
let blocks: Blocks;
let requests: Request[];

beforeEach(() => {
  network = new FakeNetwork();
  here = network.node(HERE);
  source = network.node(SOURCE);
  requests = [];
  blocks = blocksOf(here);
});

function blocksOf(node: FakeNode): Blocks {
  return new Blocks({
    shards: node.shards,
    pool: new SharedArrayBuffer(node.shards.numBlocks * node.shards.blockBytes),
    joins: node.joins,
    hasChecksums: false,
    storeMs: node.times.storeMs,
    now: () => network.nowMs,
  });
}

afterEach(async () => {
  for (const request of requests) request.finish();
  await network.settle();
  expect(here.shards.totals().pins).toBe(0);
  expect(source.shards.totals().pins).toBe(0);
});

function open(): Request {
  const request = new Request(
    {
      shards: here.shards,
      blocks,
      sessions: here.sessions,
      decoders: here.decoders,
      counters: { miss: () => undefined },
      lookupMs: here.times.lookupMs,
      leaseMs: here.times.leaseMs,
      onFinished: () => undefined,
    },
    allocateIds(
      parseParamsOrThrow({
        remote_kv_source: { kv_request_id: 'id', remote_host: '10.0.0.2', remote_port: 5710 },
      }),
      () => 'id',
    ),
  );
  requests.push(request);
  return request;
}

/** Lets everything happen that needs no time, until the promise has settled. */
async function settled<T>(promise: Promise<T>): Promise<T> {
  const state = { isSettled: false };
  const end = (): void => {
    state.isSettled = true;
  };
  promise.then(end, end);
  for (let turn = 0; !state.isSettled && turn < 100; turn++) await network.settle();
  return promise;
}

test('a load that ends with an error gives back what it had pulled and pinned before', async () => {
  source.put(1);
  const request = open();
  await settled(request.lookup(keysOf(1, 2)));
  here.shards.failNext('match', BUSY);
  await expect(settled(request.load(keysOf(1, 2)))).rejects.toMatchObject({ code: 'KVPEER_BUSY' });
  expect(here.phases(1)).toEqual(['ready']);
  expect(here.shards.totals().pins).toBe(0);
});

test('a request that is finished during its lookup does not begin one at its source', async () => {
  source.put(1);
  const session = await here.session(SOURCE);
  const request = open();
  const looking = request.lookup(keysOf(1));
  request.finish();
  expect((await settled(looking)).hitCount).toBe(0);
  expect(source.received.filter((frame) => frame.startsWith('lookup'))).toEqual([]);
  expect(session.consumer.stats().idCount).toBe(0);
});

test('a request that is finished during its load does not begin a fetch at its source', async () => {
  source.put(1);
  const session = await here.session(SOURCE);
  const request = open();
  await settled(request.lookup(keysOf(1)));
  const loading = request.load(keysOf(1));
  request.finish();
  const load = await settled(loading);
  expect(load.presentCount).toBe(0);
  load.release();
  expect(session.consumer.stats()).toEqual({ idCount: 0, openLookupCount: 0, openLoadCount: 0 });
});

const IF_HELD = ['round_seq', 'ttl_ms', 'lookup_seq', 'speculative_fetch'] as const;
const ATTEMPTS: readonly { readonly name: string; readonly ofSource: readonly Feature[] }[] = [
  { name: 'in one message from a source that takes it', ofSource: IF_HELD },
  { name: 'after a lookup from one that does not', ofSource: ['lookup_seq'] },
];

test.each(ATTEMPTS)(
  'a load of expected blocks fetches them $name; the rest are misses',
  async ({ ofSource }) => {
    network = new FakeNetwork();
    here = network.node(HERE, { features: IF_HELD });
    source = network.node(SOURCE, { features: ofSource });
    blocks = blocksOf(here);
    source.put(1, 3);
    here.put(4);
    await here.session(SOURCE);
    const request = open();
    let startedCount = 0;
    const onStarted = (): void => {
      startedCount += 1;
    };
    const load = await settled(request.load(keysOf(1, 2, 3, 4), { expect: 'held', onStarted }));
    expect([...load.slots].map((slot) => slot >= 0)).toEqual([true, false, true, true]);
    expect(load.pulledCount).toBe(2);
    expect(startedCount).toBe(1);
    load.release();
    const asked = source.received.filter((frame) => /^(lookup|fetch)/.test(frame));
    expect(asked.map((frame) => frame.replace(/ id#0/, ''))).toEqual(
      ofSource === IF_HELD ? ['fetch (3) if held'] : ['lookup (4)', 'fetch (2)'],
    );
    expect(here.phases(1, 2, 3)).toEqual(['ready', 'absent', 'ready']);
  },
);

test('a load of expected blocks asks first while the source has not said what it takes', async () => {
  network = new FakeNetwork();
  here = network.node(HERE, { features: IF_HELD });
  source = network.node(SOURCE, { features: IF_HELD });
  blocks = blocksOf(here);
  source.put(1);
  const request = open();
  const load = await settled(request.load(keysOf(1), { expect: 'held' }));
  expect(load.pulledCount).toBe(1);
  load.release();
  expect(source.received).toContain('lookup id#0 (1)');
});

test('a request that is finished during a load of expected blocks leaves nothing at its source', async () => {
  network = new FakeNetwork();
  here = network.node(HERE, { features: IF_HELD });
  source = network.node(SOURCE, { features: IF_HELD, servesEnd: false });
  blocks = blocksOf(here);
  source.put(1);
  const session = await here.session(SOURCE);
  const request = open();
  const loading = request.load(keysOf(1), { expect: 'held' });
  await network.settle();
  request.finish();
  const load = await settled(loading);
  expect(load.presentCount).toBe(0);
  load.release();
  for (const serve of source.serves) serve.end();
  await network.settle();
  expect(session.consumer.stats()).toEqual({ idCount: 0, openLookupCount: 0, openLoadCount: 0 });
  expect(here.shards.totals()).toMatchObject({ writing: 0, quarantined: 0 });
});

test('a store that cannot look at what others wrote meanwhile keeps no pins', async () => {
  let reserved = false;
  here.shards.reserve(packedKeys(keysOf(2)), (_failure, set) => {
    reserved = set !== undefined;
    if (set) here.shards.publish(set, { keepPins: false }, () => undefined);
  });
  const storing = blocks.store(keysOf(1, 2), new Uint8Array(2 * here.shards.blockBytes));
  here.shards.failNext('match', BUSY);
  await expect(settled(storing)).rejects.toMatchObject({ code: 'KVPEER_BUSY' });
  expect(reserved).toBe(true);
  expect(here.phases(1, 2)).toEqual(['ready', 'ready']);
});

test('a fetch that ends in the turn in which its last blocks were stored leaves none of them pinned', async () => {
  const id = 'prefill';
  here.decoders.open(id);
  const publish = here.shards.publish.bind(here.shards);
  here.shards.publish = (set, options, done) => {
    publish(set, options, (failure, result) => {
      done(failure, result);
      here.decoders.onFetched(id);
    });
  };
  const storing = blocks.storeFilled(keysOf(1, 2), (set) => {
    here.decoders.addStored(id, set);
  });
  expect(await settled(storing)).toEqual({ storedCount: 2, presentCount: 0, notStoredCount: 0 });
  expect(here.decoders.pinnedCount).toBe(0);
  expect(here.shards.totals().pins).toBe(0);
});
