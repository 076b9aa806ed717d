// Fetches of what is held, without a lookup before: the producer waits for nothing and keeps within the limits of
// lookups, the consumer counts what did not come as a miss; and who may use them with whom.

import { describe, expect, it } from 'vitest';

import { Outcome } from '../../src/shared/operations.js';
import { scan } from '../../src/main/protocol/scan.js';
import { writeFetch } from '../../src/main/protocol/write.js';
import { ConsumerNode, loadedOf } from '../fixtures/consumer-harness.js';
import { packedKeys } from '../fixtures/fake-shards.js';
import type { HarnessOptions, ProducerHarness } from '../fixtures/producer-harness.js';
import { fetchMessage, KEY_BYTES, keysOf, NodeHarness } from '../fixtures/producer-harness.js';

const BOTH = { isKvpeer: true, features: ['speculative_fetch'] } as const;
const CLEAN = { pins: 0, openSets: 0, writing: 0, quarantined: 0, waiting: 0 };

describe('the message', () => {
  const frame = writeFetch('r', keysOf(1), KEY_BYTES, Int32Array.of(4), 2, { ttlMs: 9, ifHeld: true });

  it('is a fetch with one field more', () => {
    expect(scan(frame)).toMatchObject({ type: 'fetch', roundSeq: 2, ttlMs: 9, ifHeld: true });
    expect(scan(writeFetch('r', keysOf(1), KEY_BYTES, Int32Array.of(4), 2))).toMatchObject({ ifHeld: false });
  });

  it.each([
    ['false', 'c2'],
    ['1', '01'],
    ['nil', 'c0'],
    ['text', 'a474727565'],
    ['a list', '91c3'],
  ])('with %s in that place is an ordinary one', (_, value) => {
    const changed = Buffer.from(frame.toString('hex').replace(/c3$/, value), 'hex');
    expect(scan(changed)).toMatchObject({ type: 'fetch', ifHeld: false, ttlMs: 9 });
  });
});

describe('a producer', () => {
  function start(options: HarnessOptions = BOTH): { node: NodeHarness; peer: ProducerHarness } {
    const node = new NodeHarness(options);
    return { node, peer: node.session({ ...BOTH, ...options }) };
  }

  it('pins and writes what it holds and answers once, with what was written', () => {
    const { node, peer } = start();
    node.put(1, 3);
    peer.fetchHeld('r', 0, 1, 2, 3);
    expect(node.pins).toBe(2);
    expect(peer.sent()).toEqual([]);
    peer.endServe();
    expect(peer.sent()).toEqual(['transfer_done r#0 false 10100000']);
    expect(node.pins).toBe(0);
    expect(node.shards.totals().openSets).toBe(0);
    expect(peer.counted.get('bytesServed')).toBe(2 * node.shards.blockBytes);
  });

  it('says success when it held everything', () => {
    const { node, peer } = start();
    node.put(1, 2);
    peer.fetchHeld('r', 0, 1, 2);
    peer.endServe();
    expect(peer.sent()).toEqual(['transfer_done r#0 true']);
  });

  it('answers at once when it holds nothing', () => {
    const { node, peer } = start();
    peer.fetchHeld('r', 0, 1, 2);
    expect(peer.sent()).toEqual(['transfer_done r#0 false 00000000']);
    expect(node.shards.totals()).toMatchObject({ pins: 0, openSets: 0 });
    expect(node.shards.asked).not.toContain('serve');
  });

  it('waits for no block that is being written', () => {
    const { node, peer } = start();
    node.put(1);
    const writing = node.reserve(2);
    peer.fetchHeld('r', 0, 1, 2);
    peer.endServe();
    expect(peer.sent()).toEqual(['transfer_done r#0 false 10000000']);
    node.publish(writing);
    expect(peer.sent()).toEqual([]);
  });

  it('writes also what a lookup of the round did not find, and lets the pins of that round go', () => {
    const { node, peer } = start();
    node.put(1, 2);
    peer.lookup('r', 0, 1, 2, 3);
    node.put(3);
    peer.sent();
    peer.fetchHeld('r', 0, 1, 3);
    peer.endServe();
    expect(peer.sent()).toEqual(['transfer_done r#0 true']);
    expect(node.pins).toBe(0);
    expect(peer.producer.stats().leaseCount).toBe(0);
  });

  it('does not write more than a peer may pin, and counts the cut', () => {
    const { node, peer } = start({ numBlocks: 16, limits: { peerPinShare: 0.25 } });
    node.put(1, 2, 3, 4, 5, 6);
    peer.lookup('other', 0, 1);
    peer.sent();
    peer.fetchHeld('r', 0, 2, 3, 4, 5, 6);
    expect(node.pins).toBe(4);
    expect(peer.counted.get('rejection pin_cap')).toBe(1);
    peer.endServe();
    expect(peer.sent()).toEqual(['transfer_done r#0 false 11100000']);
    expect(node.pins).toBe(1);
  });

  it('writes nothing for a peer whose pins are used up', () => {
    const { node, peer } = start({ numBlocks: 16, limits: { peerPinShare: 0.25 } });
    node.put(1, 2, 3, 4, 5);
    peer.lookup('other', 0, 1, 2, 3, 4);
    peer.sent();
    peer.fetchHeld('r', 0, 5);
    expect(peer.sent()).toEqual(['transfer_done r#0 false 00000000']);
    expect(peer.counted.get('miss pin-cap')).toBe(1);
    expect(node.budget.total).toBe(4);
  });

  it('counts a block that the peer pins already once: a lookup of the round costs the fetch nothing', () => {
    const { node, peer } = start({ numBlocks: 16, limits: { peerPinShare: 0.25 } });
    node.put(1, 2, 3);
    peer.lookup('r', 0, 1, 2, 3);
    peer.sent();
    peer.fetchHeld('r', 0, 1, 2, 3);
    peer.endServe();
    expect(peer.sent()).toEqual(['transfer_done r#0 true']);
    expect(node.pins).toBe(0);
    expect(node.budget.total).toBe(0);
  });

  it('lets the pins of lookups of the round go when there is nothing to write', () => {
    const { node, peer } = start();
    node.put(1, 2);
    peer.lookup('r', 0, 1, 2);
    peer.sent();
    peer.fetchHeld('r', 0, 3);
    expect(peer.sent()).toEqual(['transfer_done r#0 false 00000000']);
    expect(node.pins).toBe(0);
  });

  it('lets them go when the worker that matches dies', () => {
    const { node, peer } = start();
    node.put(1, 2);
    peer.lookup('r', 0, 1, 2);
    peer.sent();
    node.shards.failNext('match', { code: 'KVPEER_WORKER_LOST' });
    peer.fetchHeld('r', 0, 1);
    expect(peer.sent()).toEqual(['transfer_done r#0 false']);
    expect(node.pins).toBe(0);
  });

  it('misses nothing because of what other fetches and lookups of the peer could have found', () => {
    const { node, peer } = start({ numBlocks: 16, limits: { peerPinShare: 0.25 } });
    node.put(1, 2);
    node.shards.hold('match');
    peer.fetchHeld('a', 0, 11, 12, 13);
    peer.lookup('b', 0, 14, 15, 16);
    peer.fetchHeld('c', 0, 1, 2);
    node.shards.resume('match');
    node.shards.settle();
    peer.endServe();
    expect(peer.sent()).toEqual([
      'transfer_done a#0 false 00000000',
      'lookup_resp b#0 000',
      'transfer_done c#0 true',
    ]);
  });

  it('misses nothing because of what other peers could have found', async () => {
    const { node, peer } = start({ numBlocks: 16, limits: { peerPinShare: 0.25 } });
    const others = [node.session(BOTH), node.session(BOTH)];
    node.put(1, 2);
    node.shards.hold('match');
    for (const other of others) other.fetchHeld('r', 0, 11, 12, 13, 14);
    peer.fetchHeld('r', 0, 1, 2);
    node.shards.resume('match');
    node.shards.settle();
    // Those that wait for other peers are called in a microtask.
    await Promise.resolve();
    node.shards.settle();
    peer.endServe();
    expect(peer.sent()).toEqual(['transfer_done r#0 true']);
  });

  it('comes before the next in the queue of a peer that pins all it may', async () => {
    const { node, peer } = start({ numBlocks: 16, limits: { peerPinShare: 0.25 } });
    const others = [node.session(BOTH), node.session(BOTH)];
    node.put(1, 2);
    node.shards.hold('match');
    for (const other of others) {
      for (const id of ['a', 'b', 'c']) other.lookup(id, 0, 11, 12, 13, 14, 15);
    }
    peer.fetchHeld('r', 0, 1, 2);
    node.shards.resume('match');
    node.shards.settle();
    expect(others.map((other) => other.sent())).toEqual([
      ['lookup_resp a#0 00000'],
      ['lookup_resp a#0 00000'],
    ]);
    await Promise.resolve();
    node.shards.settle();
    peer.endServe();
    expect(peer.sent()).toEqual(['transfer_done r#0 true']);
  });

  it('is dropped without a match when its abort comes while it waits for its turn', () => {
    const { node, peer } = start({ numBlocks: 16, limits: { peerPinShare: 0.25 } });
    node.put(1, 2);
    node.shards.hold('match');
    peer.fetchHeld('a', 0, 11, 12, 13);
    peer.fetchHeld('b', 0, 1, 2);
    peer.abort('b', 0);
    node.shards.resume('match');
    node.shards.settle();
    expect(peer.sent()).toEqual(['abort_ack b#0', 'transfer_done a#0 false 00000000']);
    expect(node.budget.heldKeys).toBe(0);
    expect(node.pins).toBe(0);
  });

  it('keeps the accounts of its pins, whatever becomes of the fetches', () => {
    const { node, peer } = start();
    node.put(1, 2);
    peer.fetchHeld('a', 0, 1, 2);
    peer.fetchHeld('b', 0, 1, 9);
    peer.fetchHeld('c', 0, 8, 9);
    peer.abort('b', 0);
    while (peer.serves.length > 0) peer.endServe();
    expect(node.pins).toBe(0);
    expect(node.budget.total).toBe(0);
    expect(node.budget.heldKeys).toBe(0);
  });

  it('refuses destinations given twice as in any fetch', () => {
    const { node, peer } = start();
    node.put(1, 2);
    peer.fetchHeld('r', 0, 1, 1);
    expect(peer.sent()).toEqual(['transfer_done r#0 false']);
    expect(peer.counted.get('rejection bad_destination')).toBe(1);
    expect(node.pins).toBe(0);
  });

  it.each(['WriteFailed', 'Stopped', 'WorkerLost'] as const)(
    'fails as a whole when its write ends with %s',
    (how) => {
      const { node, peer } = start();
      node.put(1, 2);
      peer.fetchHeld('r', 0, 1, 2);
      peer.endServe(Outcome[how]);
      expect(peer.sent()).toEqual(['transfer_done r#0 false']);
      expect(node.pins).toBe(0);
    },
  );

  it('fails as a whole when the worker that matches dies', () => {
    const { node, peer } = start();
    node.put(1);
    node.shards.failNext('match', { code: 'KVPEER_WORKER_LOST' });
    peer.fetchHeld('r', 0, 1);
    expect(peer.sent()).toEqual(['transfer_done r#0 false']);
    expect(peer.counted.get('miss worker-lost')).toBe(1);
    expect(node.budget.heldKeys).toBe(0);
  });

  it('writes nothing once its peer has given up waiting', () => {
    const { node, peer } = start();
    node.put(1);
    node.shards.hold('match');
    peer.producer.onFetch(fetchMessage('r', 0, keysOf(1), [1], 50, true));
    node.nowMs += 60;
    node.shards.resume('match');
    node.shards.settle();
    expect(peer.sent()).toEqual(['transfer_done r#0 false']);
    expect(node.shards.asked).not.toContain('serve');
    expect(node.pins).toBe(0);
  });

  it('writes nothing when the abort comes during its match, and gives the pins back', () => {
    const { node, peer } = start();
    node.put(1);
    node.shards.hold('match');
    peer.fetchHeld('r', 0, 1);
    peer.abort('r', 0);
    expect(peer.sent()).toEqual(['abort_ack r#0']);
    node.shards.resume('match');
    node.shards.settle();
    expect(peer.sent()).toEqual([]);
    expect(node.pins).toBe(0);
    expect(node.shards.asked).not.toContain('serve');
  });

  it('writes nothing when the session ends during its match', () => {
    const { node, peer } = start();
    node.put(1);
    node.shards.hold('match');
    peer.fetchHeld('r', 0, 1);
    peer.end();
    node.shards.resume('match');
    node.shards.settle();
    expect(peer.producer.isDrained()).toBe(true);
    expect(node.pins).toBe(0);
    expect(node.budget.heldKeys).toBe(0);
  });

  it('takes the field for nothing when the extension was not announced: the fetch waits for its blocks', () => {
    const { node } = start();
    const peer = node.session({ isKvpeer: true });
    peer.fetchHeld('r', 0, 1);
    expect(peer.sent()).toEqual([]);
    expect(peer.producer.stats().parkedCount).toBe(1);
  });

  it('takes keys of another length for misses', () => {
    const { node, peer } = start();
    node.put(1);
    const keys = Buffer.concat([keysOf(1), keysOf(2)]);
    const frame = writeFetch('r', keys, KEY_BYTES, Int32Array.of(1, 2), 0, { ifHeld: true });
    // The second key is cut by a byte.
    const at = frame.lastIndexOf(Buffer.of(0xc4, KEY_BYTES));
    const cut = Buffer.concat([
      frame.subarray(0, at),
      Buffer.of(0xc4, KEY_BYTES - 1),
      frame.subarray(at + 3),
    ]);
    const message = scan(cut);
    if (message.type !== 'fetch') throw new Error(message.type);
    peer.producer.onFetch(message);
    node.shards.settle();
    peer.endServe();
    expect(peer.sent()).toEqual(['transfer_done r#0 false 10000000']);
    expect(peer.counted.get('miss foreign-key')).toBe(1);
  });
});

describe('a consumer', () => {
  it('sends one message, keeps what was written and counts no failure for the rest', () => {
    const node = new ConsumerNode({ isKvpeer: true });
    const peer = node.session(BOTH);
    let startedCount = 0;
    const asked = peer.startLoad('r', [1, 2, 3], {
      ifHeld: true,
      onFetch: () => {
        startedCount += 1;
      },
    });
    expect(startedCount).toBe(0);
    node.shards.settle();
    expect(startedCount).toBe(1);
    expect(peer.sent()).toEqual(['fetch r#0 (3) if held']);
    peer.donePartly('r', 0, '011');
    expect(asked.results.map(loadedOf)).toEqual(['011']);
    expect(node.phases(1, 2, 3)).toEqual(['absent', 'ready', 'ready']);
    expect([...peer.counted.keys()].filter((name) => name.startsWith('miss'))).toEqual([]);
    peer.release(asked);
    peer.finish('r');
    expect(peer.sent()).toEqual([]);
    expect(node.totals).toMatchObject(CLEAN);
  });

  it('does not fetch what is here or on its way', () => {
    const node = new ConsumerNode({ isKvpeer: true });
    const peer = node.session(BOTH);
    node.shards.put(packedKeys(keysOf(1, 2)));
    const asked = peer.startLoad('r', [1, 2], { ifHeld: true });
    node.shards.settle();
    expect(peer.sent()).toEqual([]);
    expect(asked.results.map(loadedOf)).toEqual(['11']);
    peer.release(asked);
  });

  it('gives up at the deadline, aborts, and quarantines when no word comes', () => {
    const node = new ConsumerNode({ isKvpeer: true });
    const peer = node.session(BOTH);
    const asked = peer.startLoad('r', [1], { ifHeld: true });
    node.shards.settle();
    peer.sent();
    node.advance(31_000);
    expect(asked.results.map(loadedOf)).toEqual(['0']);
    expect(peer.sent()).toEqual(['abort_fetch r#0']);
    node.advance(10_000);
    expect(node.totals.quarantined).toBe(1);
    peer.donePartly('r', 0, '1');
    expect(node.totals.quarantined).toBe(0);
    expect(node.phases(1)).toEqual(['absent']);
  });

  it('quarantines the slots when the session ends before the answer', () => {
    const node = new ConsumerNode({ isKvpeer: true });
    const peer = node.session(BOTH);
    const asked = peer.startLoad('r', [1, 2], { ifHeld: true });
    node.shards.settle();
    peer.end();
    expect(asked.results.map(loadedOf)).toEqual(['00']);
    expect(node.totals.quarantined).toBe(2);
  });
});
