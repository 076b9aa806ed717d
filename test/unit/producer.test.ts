// The producer role row by row: the table of leases of design.md section 6, and the faults of other implementations.

import { describe, expect, it } from 'vitest';
import { scan } from '../../src/main/protocol/scan.js';
import { Outcome } from '../../src/shared/operations.js';
import type { HarnessOptions, ProducerHarness } from '../fixtures/producer-harness.js';
import { fetchMessage, keysOf, lookupMessage, NodeHarness } from '../fixtures/producer-harness.js';

function start(options: HarnessOptions = {}): { node: NodeHarness; peer: ProducerHarness } {
  const node = new NodeHarness(options);
  return { node, peer: node.session(options) };
}

function range(from: number, to: number): number[] {
  return Array.from({ length: to - from + 1 }, (_, i) => from + i);
}

describe('lookup', () => {
  it('is answered once, with the keys of the request, in its order and with its duplicates', () => {
    const { node, peer } = start();
    node.put(1, 3);
    peer.lookup('r1', 0, 2, 1, 2, 3, 1);
    expect(peer.sent()).toEqual(['lookup_resp r1 01011']);
    expect(node.pins).toBe(3);
    node.advance(10_000);
    expect(peer.sent()).toEqual([]);
  });

  it('repeats the golden bytes of the plain protocol for B, A, B with only A held', () => {
    const node = new NodeHarness();
    const peer = node.session();
    const a = Buffer.from('000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f00000000', 'hex');
    const b = Buffer.from('202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f00000001', 'hex');
    node.shards.put({ bytes: a, first: 0, stride: 36, count: 1 });
    peer.producer.onLookup(lookupMessage('req-3', 0, Buffer.concat([b, a, b])));
    node.shards.settle();
    expect(peer.frames.map((frame) => frame.toString('hex'))).toEqual([
      '84a474797065ab6c6f6f6b75705f72657370ad6b765f726571756573745f6964a57265712d33a46b65797393c424202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f00000001c424000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f00000000c424202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f00000001a46869747393c2c3c2',
    ]);
  });

  it('says the round to a kvpeer (section 10 C: an old answer cannot mark a newer probe) and not to a plain peer', () => {
    const { node } = start();
    const kvpeer = node.session({ isKvpeer: true });
    const plain = node.session();
    kvpeer.lookup('r1', 7, 1);
    plain.lookup('r1', 7, 1);
    expect(kvpeer.sent()).toEqual(['lookup_resp r1#7 0']);
    expect(plain.sent()).toEqual(['lookup_resp r1 0']);
  });

  it('that has a number is answered by that number, without its keys, and one without gets its keys back', () => {
    const { node } = start();
    node.put(1);
    const peer = node.session({ isKvpeer: true });
    peer.producer.onLookup(lookupMessage('r1', 7, keysOf(1, 2), undefined, 300));
    peer.producer.onLookup(lookupMessage('r1', 7, keysOf(1, 2)));
    node.shards.settle();
    const [numbered, plain] = peer.frames.map((frame) => scan(frame));
    expect(numbered).toMatchObject({ type: 'lookup_resp', lookupSeq: 300, keys: { count: 0 } });
    expect(plain).toMatchObject({ type: 'lookup_resp', lookupSeq: undefined, keys: { count: 2 } });
    expect(peer.sent()).toEqual(['lookup_resp r1#7 10', 'lookup_resp r1#7 10']);
  });

  it('gives the memory of its message back once it is answered', () => {
    const { node } = start();
    const peer = node.session();
    const message = lookupMessage('r1', 0, keysOf(...Array.from({ length: 200 }, (_, i) => i)));
    peer.producer.onLookup(message);
    expect(message.keys.payload.length).toBeGreaterThan(4096);
    node.shards.settle();
    expect(peer.sent()).toEqual([`lookup_resp r1 ${'0'.repeat(200)}`]);
    expect(message.keys.payload).toHaveLength(0);
  });

  it('without keys gets no answer and leaves nothing behind', () => {
    const { node, peer } = start();
    peer.lookup('r1', 0);
    expect(peer.sent()).toEqual([]);
    expect(node.shards.totals().openSets).toBe(0);
  });

  it('counts keys of another length as misses', () => {
    const { node, peer } = start();
    node.put(1);
    const { keys, ...rest } = lookupMessage('r1', 0, keysOf(1, 1));
    peer.producer.onLookup({ ...rest, keys: { ...keys, foreign: Uint8Array.of(0b10), foreignCount: 1 } });
    node.shards.settle();
    expect(peer.sent()).toEqual(['lookup_resp r1 10']);
    expect(peer.counted.get('miss foreign-key')).toBe(1);
  });

  it('adds the pins of a further lookup to the same lease, which counts from the last answer', () => {
    const { node, peer } = start();
    node.put(1, 2);
    peer.lookup('r1', 0, 1);
    node.advance(29_000);
    peer.lookup('r1', 0, 2);
    node.advance(29_000);
    expect(node.pins).toBe(2);
    expect(peer.producer.stats().leaseCount).toBe(1);
    node.advance(1_000);
    expect(node.pins).toBe(0);
    expect(peer.producer.stats().leaseCount).toBe(0);
  });

  it('that no ring or arena has room for is answered with misses and counted', () => {
    const { node, peer } = start();
    node.put(1);
    node.shards.failNext('match', { code: 'KVPEER_BUSY' });
    peer.lookup('r1', 0, 1, 2);
    expect(peer.sent()).toEqual(['lookup_resp r1 00']);
    expect(peer.counted.get('miss busy')).toBe(2);
    node.shards.failNext('match', { code: 'KVPEER_WORKER_LOST' });
    peer.lookup('r1', 0, 1);
    expect(peer.sent()).toEqual(['lookup_resp r1 0']);
    expect(peer.counted.get('miss worker-lost')).toBe(1);
  });

  it('beyond the rounds of a peer is answered with misses, and the rounds it has go on', () => {
    const { node, peer } = start({ limits: { maxRounds: 2 } });
    node.put(1);
    for (const id of ['a', 'b', 'c']) peer.lookup(id, 0, 1);
    expect(peer.sent()).toEqual(['lookup_resp a 1', 'lookup_resp b 1', 'lookup_resp c 0']);
    expect(peer.counted.get('rejection max_rounds')).toBe(1);
    peer.lookup('b', 0, 1);
    expect(peer.sent()).toEqual(['lookup_resp b 1']);
    peer.fetch('c', 0, 1);
    expect(peer.sent()).toEqual(['transfer_done c#0 false']);
    peer.abort('a', 0);
    peer.lookup('c', 1, 1);
    expect(peer.sent()).toEqual(['abort_ack a#0', 'lookup_resp c 1']);
  });

  it('whose answer is a miss for every key holds nothing, so misses do not use up the rounds', () => {
    const { node, peer } = start({ limits: { maxRounds: 2 } });
    node.put(1);
    for (const round of range(0, 9)) peer.lookup('r1', round, 2);
    peer.sent();
    peer.lookup('r2', 0, 1);
    expect(peer.sent()).toEqual(['lookup_resp r2 1']);
  });
});

describe('the pin limits', () => {
  it('cut a lookup of everything: keys up to the cap are pinned in order (R.10 lookup-pins-whole-tier)', () => {
    const { node, peer } = start({ numBlocks: 16 });
    node.put(...range(1, 12));
    peer.lookup('r1', 0, ...range(1, 12));
    expect(peer.sent()).toEqual(['lookup_resp r1 111100000000']);
    expect(node.pins).toBe(4);
    expect(peer.counted.get('miss pin-cap')).toBe(8);
  });

  it('count each slot once: the same blocks are found again in other rounds, others are not', () => {
    const { node, peer } = start({ numBlocks: 16 });
    node.put(...range(1, 12));
    peer.lookup('r1', 0, 1, 2, 3);
    peer.lookup('r1', 1, 3, 2, 1);
    peer.lookup('r2', 0, 1, 2, 3, 4, 5, 4);
    expect(peer.sent()).toEqual(['lookup_resp r1 111', 'lookup_resp r1 111', 'lookup_resp r2 111101']);
    peer.abort('r2', 0);
    peer.lookup('r3', 0, 5);
    expect(peer.sent()).toEqual(['abort_ack r2#0', 'lookup_resp r3 1']);
  });

  it('hold for lookups that are under way together', () => {
    const { node, peer } = start({ numBlocks: 16 });
    node.put(...range(1, 12));
    peer.ask('r1', 0, 1, 2, 3);
    peer.ask('r2', 0, 4, 5, 6);
    peer.ask('r3', 0, 7, 8);
    node.shards.settle();
    expect(peer.sent()).toEqual(['lookup_resp r1 111', 'lookup_resp r2 100', 'lookup_resp r3 00']);
    expect(node.pins).toBe(4);
  });

  it('leave half of the pool to local stores, whatever the peers ask for together', () => {
    const { node } = start({ numBlocks: 16 });
    node.put(...range(1, 16));
    const peers = [node.session(), node.session(), node.session()];
    peers.forEach((peer, i) => {
      peer.lookup('r', 0, ...range(1 + 4 * i, 4 + 4 * i));
    });
    expect(peers.map((peer) => peer.sent()[0])).toEqual([
      'lookup_resp r 1111',
      'lookup_resp r 1111',
      'lookup_resp r 0000',
    ]);
    expect(node.pins).toBe(8);
    expect(node.budget.total).toBe(8);
    peers[0].end();
    peers[2].lookup('r', 1, ...range(9, 12));
    expect(peers[2].sent()).toEqual(['lookup_resp r 1111']);
  });

  it('are no reason for a miss while it is only matches under way that use them up', async () => {
    const { node } = start({ numBlocks: 16 });
    node.put(1);
    const [a, b, c] = [node.session(), node.session(), node.session()];
    a.ask('r', 0, ...range(21, 24));
    b.ask('r', 0, ...range(31, 34));
    c.ask('r', 0, 1);
    expect(c.sent()).toEqual([]);
    node.shards.settle();
    await Promise.resolve();
    node.shards.settle();
    expect([a, b, c].map((peer) => peer.sent())).toEqual([
      ['lookup_resp r 0000'],
      ['lookup_resp r 0000'],
      ['lookup_resp r 1'],
    ]);
    expect(c.counted.get('miss pin-cap')).toBeUndefined();
  });

  it('and are one when the others have not ended within 50 ms', async () => {
    const { node } = start({ numBlocks: 16 });
    node.put(...range(1, 9));
    const [a, b, c] = [node.session(), node.session(), node.session()];
    a.ask('r', 0, ...range(1, 4));
    b.ask('r', 0, ...range(5, 8));
    c.ask('r', 0, 9);
    node.nowMs += 51;
    node.shards.settle();
    await Promise.resolve();
    expect(c.sent()).toEqual(['lookup_resp r 0']);
    expect(c.counted.get('miss pin-cap')).toBe(1);
  });

  it('leave the request arena to others: long lookups with one hit each are refused at some point', () => {
    const { node, peer } = start();
    node.put(1);
    const keys = keysOf(1, ...new Array<number>(65_535).fill(9));
    for (const round of [0, 1, 2]) {
      peer.producer.onLookup(lookupMessage('r1', round, keys));
      node.shards.settle();
    }
    expect(peer.sent().map((answer) => answer.slice(0, 18))).toEqual([
      'lookup_resp r1 100',
      'lookup_resp r1 100',
      'lookup_resp r1 000',
    ]);
    expect(peer.counted.get('rejection max_held_keys')).toBe(1);
    peer.abort('r1', 0);
    peer.lookup('r1', 3, 1);
    expect(peer.sent()).toEqual(['abort_ack r1#0', 'lookup_resp r1 1']);
  });

  it('keep a set that an exact count reads until the count is done', () => {
    const { node, peer } = start({ numBlocks: 16 });
    node.put(...range(1, 12));
    peer.lookup('r1', 0, 1, 2, 3);
    peer.ask('r2', 0, 1, 2, 3, 4);
    peer.producer.onFetch(fetchMessage('r1', 0, Buffer.alloc(0), []));
    expect(node.pins).toBe(3);
    node.shards.settle();
    expect(peer.sent()).toEqual(['lookup_resp r1 111', 'lookup_resp r2 1111']);
    expect(node.pins).toBe(4);
    expect(peer.producer.stats().leasePinCount).toBe(4);
  });
});

describe('a lookup with blocks that are being written', () => {
  it('waits, and is answered when they are published; only the pending keys are asked again', () => {
    const { node, peer } = start();
    node.put(1);
    const set = node.reserve(2, 3);
    peer.lookup('r1', 0, 1, 2, 3, 4);
    expect(peer.sent()).toEqual([]);
    expect(peer.producer.stats().parkedCount).toBe(1);
    const matches = node.shards.asked.filter((operation) => operation === 'match').length;
    node.publish(set);
    expect(peer.sent()).toEqual(['lookup_resp r1 1110']);
    expect(node.shards.asked.filter((operation) => operation === 'match')).toHaveLength(matches + 1);
    expect(node.pins).toBe(3);
  });

  it('is a miss for what was abandoned', () => {
    const { node, peer } = start();
    const set = node.reserve(2);
    peer.lookup('r1', 0, 2);
    node.abandon(set);
    expect(peer.sent()).toEqual(['lookup_resp r1 0']);
  });

  it('does not look again for slots that it does not wait for', () => {
    const { node, peer } = start();
    const set = node.reserve(2);
    const other = node.reserve(3);
    peer.lookup('r1', 0, 2);
    node.shards.asked.length = 0;
    node.publish(other);
    expect(node.shards.asked).toEqual(['publish']);
    node.publish(set);
    expect(peer.sent()).toEqual(['lookup_resp r1 1']);
  });

  it('pins what settles first and answers when the rest has settled', () => {
    const { node, peer } = start();
    const first = node.reserve(1);
    const second = node.reserve(2);
    peer.lookup('r1', 0, 1, 2);
    node.publish(first);
    expect(peer.sent()).toEqual([]);
    expect(node.pins).toBe(1);
    node.abandon(second);
    expect(peer.sent()).toEqual(['lookup_resp r1 10']);
  });

  it('notices a publish whose completion overtook the answer of the match', () => {
    const { node, peer } = start();
    const set = node.reserve(1);
    // The match has seen the block being written, and is told so only after the publish was told.
    const match = node.shards.match.bind(node.shards);
    let late: (() => void) | undefined;
    node.shards.match = (keys, options, done) => {
      match(keys, options, (failure, result) => {
        late = () => {
          done(failure, result);
        };
      });
    };
    peer.lookup('r1', 0, 1);
    node.shards.match = match;
    node.publish(set);
    expect(peer.sent()).toEqual([]);
    late?.();
    node.shards.settle();
    expect(peer.sent()).toEqual(['lookup_resp r1 1']);
  });

  it('looks once more when the hold time is over; what is pending then is a miss', () => {
    const { node, peer } = start();
    node.put(1);
    node.reserve(2);
    peer.lookup('r1', 0, 1, 2);
    node.advance(4_999);
    expect(peer.sent()).toEqual([]);
    node.advance(1);
    expect(peer.sent()).toEqual(['lookup_resp r1 10']);
    expect(peer.counted.get('miss hold-expired')).toBe(1);
    expect(node.pins).toBe(1);
    node.advance(29_999);
    expect(node.pins).toBe(1);
    node.advance(1);
    expect(node.pins).toBe(0);
  });

  it('answers a peer that waits less than the hold time before it gives up', () => {
    const { node } = start();
    const peer = node.session({ isKvpeer: true });
    node.put(1);
    node.reserve(2);
    peer.producer.onLookup(lookupMessage('r1', 0, keysOf(1, 2), 2_000));
    node.shards.settle();
    node.advance(1_250);
    expect(peer.sent()).toEqual(['lookup_resp r1#0 10']);
    peer.producer.onLookup(lookupMessage('r2', 0, keysOf(1, 2), 10));
    node.shards.settle();
    expect(peer.sent()).toEqual(['lookup_resp r2#0 10']);
  });

  it('does nothing more for a lookup that the peer has given up', () => {
    const { node } = start();
    const peer = node.session({ isKvpeer: true });
    const set = node.reserve(2);
    peer.producer.onLookup(lookupMessage('r1', 0, keysOf(2), 2_000));
    node.shards.settle();
    node.nowMs += 2_001;
    node.shards.asked.length = 0;
    node.publish(set);
    expect(node.shards.asked).toEqual(['publish']);
    expect(peer.sent()).toEqual(['lookup_resp r1#0 0']);
  });

  it('parks no more keys of one peer than a list may have', () => {
    const { node, peer } = start({ limits: { maxKeys: 3 } });
    node.reserve(1, 2);
    peer.lookup('r1', 0, 1, 2);
    peer.lookup('r2', 0, 1, 2);
    expect(peer.sent()).toEqual(['lookup_resp r2 00']);
    expect(peer.counted.get('rejection max_parked_keys')).toBe(1);
  });
});

describe('fetch of leased blocks', () => {
  it('writes them and says so once; then the whole lease goes, unfetched pins too', () => {
    const { node, peer } = start();
    node.put(1, 2, 3);
    peer.lookup('r1', 0, 1, 2, 3);
    peer.sent();
    peer.fetch('r1', 0, 1, 2);
    expect(peer.serves).toHaveLength(1);
    expect([...peer.serves[0].request.indexes]).toEqual([1, 2]);
    expect(node.pins).toBe(3);
    expect(peer.sent()).toEqual([]);
    peer.endServe();
    expect(peer.sent()).toEqual(['transfer_done r1#0 true']);
    expect(node.pins).toBe(0);
    expect(node.budget.total).toBe(0);
    expect(peer.counted.get('bytesServed')).toBe(2 * 4_096);
    node.advance(120_000);
    expect(peer.sent()).toEqual([]);
  });

  it('fails at once for a key that is not in the lease, without a partial write', () => {
    const { node, peer } = start();
    node.put(1, 2);
    peer.lookup('r1', 0, 1);
    peer.fetch('r1', 0, 1, 2);
    expect(peer.sent()).toEqual(['lookup_resp r1 1', 'transfer_done r1#0 false']);
    expect(node.pins).toBe(0);
    expect(peer.serves).toHaveLength(0);
  });

  it('fails at once when the lease has lapsed (section 10 G: pins that are gone are not offered)', () => {
    const { node, peer } = start();
    node.put(1);
    peer.lookup('r1', 0, 1);
    node.advance(30_000);
    peer.sent();
    peer.fetch('r1', 0, 1);
    expect(peer.sent()).toEqual(['transfer_done r1#0 false']);
    expect(peer.serves).toHaveLength(0);
  });

  it('fails at once when every lookup of the round was answered with misses', () => {
    const { node, peer } = start();
    peer.lookup('r1', 0, 1);
    node.put(1);
    peer.fetch('r1', 0, 1);
    expect(peer.sent()).toEqual(['lookup_resp r1 0', 'transfer_done r1#0 false']);
  });

  it('remembers an answered round for the remembered time, then it is as if never looked up', () => {
    const { node, peer } = start();
    node.put(1);
    peer.lookup('r1', 0, 1);
    peer.lookup('r2', 0, 1);
    node.advance(30_000 + 59_999);
    peer.sent();
    peer.fetch('r1', 0, 1);
    expect(peer.sent()).toEqual(['transfer_done r1#0 false']);
    node.advance(1);
    peer.fetch('r2', 0, 1);
    peer.endServe();
    expect(peer.sent()).toEqual(['transfer_done r2#0 true']);
  });

  it('remembers only so many rounds (section 10 Q, R.10 bound-ids-grow)', () => {
    const { node, peer } = start({ limits: { maxRounds: 2 } });
    for (const i of range(0, 99)) peer.lookup(`r${i}`, 0, 1);
    for (const i of range(0, 99)) peer.fetch(`x${i}`, 0);
    peer.sent();
    node.put(1);
    peer.fetch('r99', 0, 1);
    peer.fetch('r0', 0, 1);
    expect(peer.sent()).toEqual(['transfer_done r99#0 false']);
    peer.endServe();
    expect(peer.sent()).toEqual(['transfer_done r0#0 true']);
  });

  it('keeps rounds apart: the end of one leaves the pins of the next (section 10 number 2)', () => {
    const { node, peer } = start();
    node.put(1, 2);
    peer.lookup('r1', 0, 1);
    peer.fetch('r1', 0, 1);
    peer.lookup('r1', 1, 2);
    peer.fetch('r1', 1, 2);
    peer.sent();
    const [first, second] = peer.serves;
    second.end();
    node.shards.settle();
    expect(peer.sent()).toEqual(['transfer_done r1#1 true']);
    first.end();
    node.shards.settle();
    expect(peer.sent()).toEqual(['transfer_done r1#0 true']);
    expect(node.pins).toBe(0);
  });

  it('keeps the pins of blocks that several writes share until each has ended (section 10 R)', () => {
    const { node, peer } = start();
    node.put(1);
    for (const round of [0, 1]) {
      peer.lookup('r1', round, 1);
      peer.fetch('r1', round, 1);
    }
    peer.endServe();
    expect(node.pins).toBe(1);
    peer.endServe();
    expect(node.pins).toBe(0);
  });

  it("ends only its own session's writes (section 10 number 28)", () => {
    const { node, peer } = start();
    const other = node.session();
    node.put(1);
    for (const session of [peer, other]) {
      session.lookup('r1', 0, 1);
      session.fetch('r1', 0, 1);
      session.sent();
    }
    peer.endServe();
    expect(peer.sent()).toEqual(['transfer_done r1#0 true']);
    expect(other.sent()).toEqual([]);
    other.endServe();
    expect(other.sent()).toEqual(['transfer_done r1#0 true']);
  });

  it.each([
    ['WriteFailed', Outcome.WriteFailed],
    ['UnknownPeer', Outcome.UnknownPeer],
    ['Fault', Outcome.Fault],
    ['Stopped, for the sake of another peer', Outcome.Stopped],
  ])('that ends with %s is answered with false (section 10 number 9)', (_name, outcome) => {
    const { node, peer } = start();
    node.put(1);
    peer.lookup('r1', 0, 1);
    peer.fetch('r1', 0, 1);
    peer.sent();
    peer.endServe(outcome);
    expect(peer.sent()).toEqual(['transfer_done r1#0 false']);
    expect(node.pins).toBe(0);
  });

  it.each(['KVPEER_BUSY', 'KVPEER_WORKER_LOST', 'KVPEER_CLOSED'] as const)(
    'that the shards end with %s is answered with false',
    (code) => {
      const { node, peer } = start();
      node.put(1);
      peer.lookup('r1', 0, 1);
      node.shards.failNext('serve', { code });
      peer.fetch('r1', 0, 1);
      expect(peer.sent()).toEqual(['lookup_resp r1 1', 'transfer_done r1#0 false']);
      expect(node.pins).toBe(0);
    },
  );

  it('does not say that a failed write is over before the sockets are empty (section 10 H)', () => {
    const { node, peer } = start({ socketsDrainAtOnce: false });
    node.put(1);
    peer.lookup('r1', 0, 1);
    peer.fetch('r1', 0, 1);
    peer.sent();
    peer.endServe(Outcome.WriteFailed);
    expect(node.pins).toBe(0);
    expect(peer.sent()).toEqual([]);
    peer.drainSockets();
    expect(peer.sent()).toEqual(['transfer_done r1#0 false']);
  });

  it.each([
    ["an index beyond the peer's blocks", [4_096, 1]],
    ['one destination twice (section 10 F)', [1, 1]],
    ['an index above int32 (R.10 index-above-int32-symmetric)', [2 ** 31, 1]],
  ])('with %s is answered with false and the lease goes', (_name, indexes) => {
    const { node, peer } = start();
    node.put(1, 2);
    peer.lookup('r1', 0, 1, 2);
    peer.sent();
    const message = fetchMessage('r1', 0, keysOf(1, 2), [1, 2]);
    const isOver = indexes.some((index) => index >= 2 ** 31);
    peer.producer.onFetch({
      ...message,
      blockIndexes: Int32Array.from(indexes, (index) => (index >= 2 ** 31 ? -1 : index)),
      overRangeCount: isOver ? 1 : 0,
    });
    node.shards.settle();
    expect(peer.sent()).toEqual(['transfer_done r1#0 false']);
    expect(node.pins).toBe(0);
    expect(peer.counted.get('rejection bad_destination')).toBe(1);
  });

  it('with one key twice is answered with false (section 10 F)', () => {
    const { node, peer } = start();
    node.put(1);
    peer.lookup('r1', 0, 1, 1);
    peer.producer.onFetch(fetchMessage('r1', 0, keysOf(1, 1), [1, 2]));
    node.shards.settle();
    expect(peer.sent()).toEqual(['lookup_resp r1 11', 'transfer_done r1#0 false']);
  });

  it('without a data plane is always answered with false', () => {
    const { node } = start();
    const peer = node.session({ hasDataPlane: false });
    node.put(1);
    peer.lookup('r1', 0, 1);
    peer.fetch('r1', 0, 1);
    peer.fetch('pd', 0, 1);
    expect(peer.sent()).toEqual(['lookup_resp r1 1', 'transfer_done r1#0 false', 'transfer_done pd#0 false']);
    expect(node.pins).toBe(0);
  });

  it('closes the lookups of its round: one without an answer gets none, its pins go at once', () => {
    const { node, peer } = start();
    node.put(1, 2);
    const set = node.reserve(3);
    peer.lookup('r1', 0, 1);
    peer.lookup('r1', 0, 2, 3);
    peer.sent();
    peer.fetch('r1', 0, 1);
    peer.endServe();
    node.publish(set);
    node.advance(10_000);
    expect(peer.sent()).toEqual(['transfer_done r1#0 true']);
    expect(node.pins).toBe(0);
  });

  it('that comes while a match is under way: its pins go when it completes', () => {
    const { node, peer } = start();
    node.put(1);
    node.shards.hold('match');
    peer.ask('r1', 0, 1);
    peer.abort('r1', 0);
    expect(peer.sent()).toEqual(['abort_ack r1#0']);
    node.shards.resume('match');
    node.shards.settle();
    expect(peer.sent()).toEqual([]);
    expect(node.pins).toBe(0);
    expect(node.budget.total).toBe(0);
  });
});

describe('a second fetch for the same pair', () => {
  it('takes the place of the first: one answer, and not before nothing of the first can land', () => {
    const { node, peer } = start();
    node.put(1);
    peer.lookup('r1', 0, 1);
    peer.fetch('r1', 0, 1);
    peer.sent();
    peer.fetch('r1', 0, 1);
    expect(peer.serves[0].isCancelled).toBe(true);
    expect(peer.sent()).toEqual([]);
    peer.endServe();
    expect(peer.sent()).toEqual(['transfer_done r1#0 false']);
    expect(peer.counted.get('rejection fetch_replaced')).toBe(1);
  });

  it('of an id that came back with round 0 after an abort is served under a lease of its own (section 10 L)', () => {
    const { node, peer } = start({ socketsDrainAtOnce: false });
    node.put(1, 2);
    peer.lookup('r1', 0, 1);
    peer.fetch('r1', 0, 1);
    peer.abort('r1', 0);
    peer.lookup('r1', 0, 2);
    peer.fetch('r1', 0, 2);
    peer.sent();
    expect(peer.serves).toHaveLength(2);
    peer.serves[1].end();
    node.shards.settle();
    expect(peer.sent()).toEqual([]);
    node.advance(5_000);
    expect(peer.serves).toHaveLength(0);
    expect(peer.sent()).toEqual([]);
    peer.drainSockets();
    expect(peer.sent()).toEqual(['transfer_done r1#0 true']);
    node.advance(60_000);
    expect(peer.sent()).toEqual([]);
  });
});

describe('fetch without a lookup (prefill/decode)', () => {
  it('of blocks that are there already is written at once (section 10 number 4)', () => {
    const { node, peer } = start();
    node.put(1, 2);
    peer.fetch('pd', 0, 1, 2);
    expect(node.pins).toBe(2);
    peer.endServe();
    expect(peer.sent()).toEqual(['transfer_done pd#0 true']);
    expect(node.pins).toBe(0);
  });

  it('writes what is there and waits for the rest, batch by batch', () => {
    const { node, peer } = start();
    node.decoderRequests.open('pd');
    node.put(2);
    peer.fetch('pd', 0, 1, 2, 3);
    expect([...peer.serves[0].request.indexes]).toEqual([1, 2, 3]);
    expect(peer.serves[0].blockCount).toBe(1);
    peer.endServe();
    node.storeFor('pd', 1);
    node.storeFor('pd', 3);
    expect(peer.serves.map((serve) => [...serve.request.indexes])).toEqual([[1, 3], [3]]);
    peer.endServe();
    expect(peer.sent()).toEqual([]);
    peer.endServe();
    expect(peer.sent()).toEqual(['transfer_done pd#0 true']);
    node.decoderRequests.finish('pd');
    expect(node.pins).toBe(0);
  });

  it('finds blocks that another request was writing (section 10 number 5): both ids get all of theirs', () => {
    const { node, peer } = start();
    const other = node.session();
    const set = node.reserve(1, 2);
    peer.fetch('a', 0, 1, 2);
    other.fetch('b', 0, 2, 1);
    node.advance(20);
    node.publish(set);
    for (const session of [peer, other]) {
      session.endServe();
      expect(session.sent()).toHaveLength(1);
    }
    expect(node.pins).toBe(0);
  });

  it('fails at once when the local request ends without the blocks (section 10 number 6)', () => {
    const { node, peer } = start();
    node.decoderRequests.open('pd');
    peer.fetch('pd', 0, 1, 2);
    node.storeFor('pd', 1);
    peer.endServe();
    expect(peer.sent()).toEqual([]);
    node.decoderRequests.finish('pd');
    node.shards.settle();
    expect(peer.sent()).toEqual(['transfer_done pd#0 false']);
  });

  it('fails at once when the request had ended with fewer blocks before (R.10 fetch-after-short-prefill-waits)', () => {
    const { node, peer } = start();
    node.decoderRequests.open('pd');
    node.storeFor('pd', 1);
    node.decoderRequests.finish('pd');
    peer.fetch('pd', 0, 1, 2);
    expect(peer.sent()).toEqual([]);
    peer.endServe();
    expect(peer.sent()).toEqual(['transfer_done pd#0 false']);
    expect(peer.serves).toHaveLength(0);
  });

  it('after the request has ended gets everything that was stored', () => {
    const { node, peer } = start();
    node.decoderRequests.open('pd');
    node.storeFor('pd', 1, 2);
    node.decoderRequests.finish('pd');
    node.advance(59_000);
    expect(node.pins).toBe(2);
    peer.fetch('pd', 0, 1, 2);
    peer.endServe();
    expect(peer.sent()).toEqual(['transfer_done pd#0 true']);
    expect(node.pins).toBe(0);
  });

  it('fails at once when the id was reaped, for as long as that is remembered (section 10 number 7)', () => {
    const { node, peer } = start();
    node.decoderRequests.open('pd');
    node.storeFor('pd', 1);
    node.decoderRequests.finish('pd');
    node.advance(60_000);
    expect(node.pins).toBe(0);
    peer.fetch('pd', 0, 1);
    expect(peer.sent()).toEqual(['transfer_done pd#0 false']);
    node.advance(60_000);
    peer.fetch('pd', 1, 1);
    peer.endServe();
    expect(peer.sent()).toEqual(['transfer_done pd#1 true']);
  });

  it('does not lose the blocks of an id to an empty fetch or to a peer that dies (R.10 any-peer-takes-parked-blocks)', () => {
    const { node, peer } = start();
    const stranger = node.session();
    node.decoderRequests.open('pd');
    node.storeFor('pd', 1);
    stranger.fetch('pd', 0);
    stranger.fetch('pd', 1, 1);
    stranger.end();
    expect(node.pins).toBe(1);
    peer.fetch('pd', 0, 1);
    peer.endServe();
    expect(peer.sent()).toEqual(['transfer_done pd#0 true']);
  });

  it('with one key twice, or a bad destination, is answered with false (R.10 duplicate-keys-never-complete)', () => {
    const { node, peer } = start();
    node.put(1);
    peer.producer.onFetch(fetchMessage('pd', 0, keysOf(1, 1), [1, 2]));
    peer.producer.onFetch(fetchMessage('pd', 1, keysOf(1), [4_096]));
    node.shards.settle();
    expect(peer.sent()).toEqual(['transfer_done pd#0 false', 'transfer_done pd#1 false']);
    expect(node.pins).toBe(0);
  });

  it('with an index above int32 is answered with false (R.10 index-above-int32-prefill)', () => {
    const { peer } = start();
    const message = fetchMessage('pd', 0, keysOf(1), [1]);
    peer.producer.onFetch({ ...message, blockIndexes: Int32Array.of(-1), overRangeCount: 1 });
    expect(peer.sent()).toEqual(['transfer_done pd#0 false']);
  });

  it('with a key of another length is answered with false', () => {
    const { peer } = start();
    const { keys, ...rest } = fetchMessage('pd', 0, keysOf(1), [1]);
    peer.producer.onFetch({ ...rest, keys: { ...keys, foreign: Uint8Array.of(1), foreignCount: 1 } });
    expect(peer.sent()).toEqual(['transfer_done pd#0 false']);
  });

  it('looks again at most every 10 ms for blocks of others, and at once for those of its id', () => {
    const { node, peer } = start();
    node.decoderRequests.open('pd');
    peer.fetch('pd', 0, 1);
    const looks = (): number => node.shards.asked.filter((operation) => operation === 'match').length;
    node.advance(10);
    for (const id of range(20, 29)) node.publish(node.reserve(id));
    expect(looks()).toBe(2);
    node.advance(10);
    expect(looks()).toBe(3);
    node.storeFor('pd', 1);
    expect(peer.serves).toHaveLength(1);
  });

  it('pins a quarter of the pool at a time, and goes on with the rest', () => {
    const { node, peer } = start({ numBlocks: 16 });
    node.put(...range(1, 10));
    peer.fetch('pd', 0, ...range(1, 10));
    peer.fetch('pd2', 0, 1, 2);
    expect(node.pins).toBe(4);
    expect(peer.serves.map((serve) => serve.blockCount)).toEqual([4]);
    for (let i = 0; i < 10 && peer.serves.length > 0; i++) {
      expect(node.pins).toBeLessThanOrEqual(4);
      peer.endServe();
    }
    expect(peer.sent().sort()).toEqual(['transfer_done pd#0 true', 'transfer_done pd2#0 true']);
    expect(node.pins).toBe(0);
  });

  it('looks as soon as another demand of the peer has found less than it might have pinned', () => {
    const { node, peer } = start({ numBlocks: 16 });
    node.put(1);
    peer.producer.onFetch(fetchMessage('a', 0, keysOf(5, 6, 7, 8), [5, 6, 7, 8]));
    peer.producer.onFetch(fetchMessage('b', 0, keysOf(1), [1]));
    node.shards.settle();
    expect(peer.serves.map((serve) => [...serve.request.indexes])).toEqual([[1]]);
  });

  it('waits when the shards have no room, and looks again', () => {
    const { node, peer } = start();
    node.put(1);
    node.shards.failNext('match', { code: 'KVPEER_BUSY' });
    peer.fetch('pd', 0, 1);
    expect(peer.serves).toHaveLength(0);
    node.advance(10);
    expect(peer.serves).toHaveLength(1);
  });

  it('is not started any more for a kvpeer that has given it up', () => {
    const { node } = start();
    const peer = node.session({ isKvpeer: true });
    peer.producer.onFetch(fetchMessage('pd', 0, keysOf(1), [1], 3_000));
    node.shards.settle();
    node.advance(3_001);
    node.publish(node.reserve(1));
    expect(peer.serves).toHaveLength(0);
    expect(peer.sent()).toEqual(['transfer_done pd#0 false']);
  });
});

describe('the empty fetch', () => {
  it('lets go what the id holds in all rounds, parked lookups too, without an answer', () => {
    const { node, peer } = start();
    node.put(1, 2);
    const set = node.reserve(3);
    peer.lookup('r1', 0, 1);
    peer.lookup('r1', 1, 2, 3);
    peer.lookup('r2', 0, 1);
    peer.sent();
    peer.fetch('r1', 1);
    expect(node.pins).toBe(1);
    node.publish(set);
    node.advance(10_000);
    expect(peer.sent()).toEqual([]);
    expect(peer.producer.stats()).toEqual({ leaseCount: 1, leasePinCount: 1, parkedCount: 0, serveCount: 0 });
  });

  it('drops what was not posted of a write; what was posted keeps its pins until it ends', () => {
    const { node, peer } = start();
    node.put(1);
    peer.lookup('r1', 0, 1);
    peer.fetch('r1', 0, 1);
    peer.sent();
    peer.fetch('r1', 1);
    expect(peer.serves[0].isCancelled).toBe(true);
    expect(node.pins).toBe(1);
    peer.endServe();
    expect(node.pins).toBe(0);
    expect(peer.sent()).toEqual([]);
  });

  it('after the abort of a round leaves the acknowledgement owed (what a plain peer sends at its finish)', () => {
    const { node, peer } = start();
    node.put(1);
    peer.lookup('r1', 0, 1);
    peer.fetch('r1', 0, 1);
    peer.sent();
    peer.abort('r1', 0);
    peer.fetch('r1', 1);
    expect(peer.sent()).toEqual([]);
    peer.endServe();
    expect(peer.sent()).toEqual(['abort_ack r1#0']);
  });

  it('drops a demand without an answer', () => {
    const { node, peer } = start();
    peer.fetch('pd', 0, 1);
    peer.fetch('pd', 0);
    node.put(1);
    node.advance(60_000);
    expect(peer.sent()).toEqual([]);
    expect(peer.producer.stats().parkedCount).toBe(0);
  });
});

describe('abort_fetch', () => {
  it('of an unknown round is acknowledged at once', () => {
    const { peer } = start();
    peer.abort('nobody', 3);
    expect(peer.sent()).toEqual(['abort_ack nobody#3']);
  });

  it('lets go only its round', () => {
    const { node, peer } = start();
    node.put(1, 2);
    peer.lookup('r1', 0, 1);
    peer.lookup('r1', 1, 2);
    peer.sent();
    peer.abort('r1', 0);
    expect(peer.sent()).toEqual(['abort_ack r1#0']);
    expect(node.pins).toBe(1);
    peer.fetch('r1', 1, 2);
    peer.endServe();
    expect(peer.sent()).toEqual(['transfer_done r1#1 true']);
  });

  it('of a running write is acknowledged when that has ended, once, and instead of transfer_done', () => {
    const { node, peer } = start();
    node.put(1);
    peer.lookup('r1', 0, 1);
    peer.fetch('r1', 0, 1);
    peer.sent();
    peer.abort('r1', 0);
    peer.abort('r1', 0);
    expect(peer.serves[0].isCancelled).toBe(true);
    expect(peer.sent()).toEqual([]);
    expect(node.pins).toBe(1);
    peer.endServe();
    expect(peer.sent()).toEqual(['abort_ack r1#0']);
    expect(node.pins).toBe(0);
    peer.abort('r1', 0);
    expect(peer.sent()).toEqual(['abort_ack r1#0']);
  });

  it('of a demand is acknowledged at once and the demand is gone', () => {
    const { node, peer } = start();
    peer.fetch('pd', 0, 1);
    peer.abort('pd', 0);
    expect(peer.sent()).toEqual(['abort_ack pd#0']);
    node.publish(node.reserve(1));
    node.advance(60_000);
    expect(peer.sent()).toEqual([]);
  });

  it('of a round after its lookup: a fetch that comes later can but fail', () => {
    const { node, peer } = start();
    node.put(1);
    peer.lookup('r1', 0, 1);
    peer.abort('r1', 0);
    peer.fetch('r1', 0, 1);
    expect(peer.sent()).toEqual(['lookup_resp r1 1', 'abort_ack r1#0', 'transfer_done r1#0 false']);
  });
});

describe('the end of the session', () => {
  it('lets all leases go and answers nobody', () => {
    const { node, peer } = start();
    node.put(1, 2);
    const set = node.reserve(3);
    peer.lookup('r1', 0, 1);
    peer.lookup('r2', 0, 2, 3);
    peer.fetch('pd', 0, 4);
    peer.sent();
    peer.end();
    expect(peer.drainedCount).toBe(1);
    expect(peer.producer.isDrained()).toBe(true);
    node.publish(set);
    node.advance(200_000);
    expect(peer.sent()).toEqual([]);
    expect(node.pins).toBe(0);
    expect(node.budget.total).toBe(0);
    expect(node.shards.totals().openSets).toBe(0);
    expect(node.wakes).toEqual([]);
  });

  it('ignores what comes afterwards', () => {
    const { node, peer } = start();
    node.put(1);
    peer.end();
    peer.end();
    peer.lookup('r1', 0, 1);
    peer.fetch('r1', 0, 1);
    peer.fetch('r1', 0);
    peer.abort('r1', 0);
    expect(peer.sent()).toEqual([]);
    expect(node.shards.totals()).toMatchObject({ pins: 0, openSets: 0 });
    expect(peer.drainedCount).toBe(1);
  });
});
