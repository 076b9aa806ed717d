// Every clock of the producer role, with a clock in the test's hands; ticks come only when the role asked for them.

import { describe, expect, it } from 'vitest';
import { Outcome } from '../../src/shared/operations.js';
import type { HarnessOptions, ProducerHarness } from '../fixtures/producer-harness.js';
import { fetchMessage, keysOf, NodeHarness } from '../fixtures/producer-harness.js';

/** A peer to which one leased block (key 1) is being written. */
function writing(options: HarnessOptions = {}): { node: NodeHarness; peer: ProducerHarness } {
  const node = new NodeHarness(options);
  const peer = node.session(options);
  node.put(1);
  peer.lookup('r1', 0, 1);
  peer.fetch('r1', 0, 1);
  peer.sent();
  return { node, peer };
}

describe('towards a plain peer, from the receipt of its fetch', () => {
  it('nothing is posted after plainPostMs', () => {
    const { node, peer } = writing();
    node.advance(24_999);
    expect(peer.serves[0].isCancelled).toBe(false);
    node.advance(1);
    expect(peer.serves[0].isCancelled).toBe(true);
    expect(peer.counted.get('hardStop')).toBeUndefined();
    peer.endServe();
    expect(peer.sent()).toEqual(['transfer_done r1#0 false']);
  });

  it('a write whose parts were all posted in time still succeeds after plainPostMs', () => {
    const { node, peer } = writing();
    node.advance(26_000);
    peer.endServe(Outcome.Ok);
    expect(peer.sent()).toEqual(['transfer_done r1#0 true']);
  });

  it('everything unfinished is hard-stopped at plainStopMs; only then the pins go and the peer is told', () => {
    const { node, peer } = writing();
    node.advance(34_999);
    expect(peer.serves).toHaveLength(1);
    expect(node.pins).toBe(1);
    node.advance(1);
    expect(peer.counted.get('hardStop')).toBe(1);
    expect(peer.hardStopCount).toBe(1);
    expect(node.pins).toBe(0);
    expect(peer.sent()).toEqual(['transfer_done r1#0 false']);
  });

  it('an aborted write is hard-stopped after plainAbortMs, then acknowledged when the sockets are empty', () => {
    const { node, peer } = writing({ socketsDrainAtOnce: false });
    node.advance(1_000);
    peer.abort('r1', 0);
    node.advance(4_000);
    peer.abort('r1', 0);
    node.advance(999);
    expect(peer.serves).toHaveLength(1);
    expect(node.pins).toBe(1);
    node.advance(1);
    expect(peer.serves).toHaveLength(0);
    expect(node.pins).toBe(0);
    expect(peer.sent()).toEqual([]);
    peer.drainSockets();
    expect(peer.sent()).toEqual(['abort_ack r1#0']);
  });

  it('an aborted write that ends in time is acknowledged without a hard stop', () => {
    const { node, peer } = writing();
    peer.abort('r1', 0);
    node.advance(4_999);
    peer.endServe(Outcome.Cancelled);
    expect(peer.sent()).toEqual(['abort_ack r1#0']);
    node.advance(60_000);
    expect(peer.counted.get('hardStop')).toBeUndefined();
  });

  it('a write is aborted late: the earlier of both clocks stops it', () => {
    const { node, peer } = writing();
    node.advance(33_000);
    peer.abort('r1', 0);
    node.advance(2_000);
    expect(peer.counted.get('hardStop')).toBe(1);
    expect(peer.sent()).toEqual(['abort_ack r1#0']);
    node.advance(60_000);
    expect(peer.counted.get('hardStop')).toBe(1);
  });

  it('a write that was let go by the empty fetch is stopped at plainStopMs of its fetch', () => {
    const { node, peer } = writing();
    peer.fetch('r1', 1);
    node.advance(35_000);
    expect(peer.counted.get('hardStop')).toBe(1);
    expect(peer.sent()).toEqual([]);
    expect(node.pins).toBe(0);
  });

  it('the end of the session hard-stops at once, and the session is drained when the sockets are empty', () => {
    const { node, peer } = writing({ socketsDrainAtOnce: false });
    node.shards.hold('hardStop');
    peer.end();
    expect(peer.counted.get('hardStop')).toBe(1);
    expect(node.pins).toBe(1);
    expect(peer.producer.isDrained()).toBe(false);
    node.shards.resume('hardStop');
    node.shards.settle();
    expect(node.pins).toBe(0);
    expect(peer.producer.isDrained()).toBe(false);
    peer.drainSockets();
    expect(peer.producer.isDrained()).toBe(true);
    expect(peer.drainedCount).toBe(1);
    expect(peer.sent()).toEqual([]);
  });

  it('a demand waits plainPostMs for its blocks', () => {
    const node = new NodeHarness();
    const peer = node.session();
    peer.fetch('pd', 0, 1);
    node.advance(24_999);
    expect(peer.sent()).toEqual([]);
    node.advance(1);
    expect(peer.sent()).toEqual(['transfer_done pd#0 false']);
    expect(peer.producer.stats().parkedCount).toBe(0);
  });

  it('a demand that has some of its blocks under way at plainPostMs is answered when these have ended', () => {
    const node = new NodeHarness();
    const peer = node.session();
    node.put(1);
    peer.fetch('pd', 0, 1, 2);
    node.advance(25_000);
    expect(peer.serves[0].isCancelled).toBe(true);
    expect(peer.sent()).toEqual([]);
    node.put(2);
    node.advance(9_999);
    expect(peer.serves).toHaveLength(1);
    node.advance(1);
    expect(peer.sent()).toEqual(['transfer_done pd#0 false']);
    expect(node.pins).toBe(0);
  });

  it('a match of a demand that comes back after plainPostMs posts nothing', () => {
    const node = new NodeHarness();
    const peer = node.session();
    node.put(1);
    node.shards.hold('match');
    peer.fetch('pd', 0, 1);
    node.advance(25_000);
    expect(peer.sent()).toEqual(['transfer_done pd#0 false']);
    node.shards.resume('match');
    node.shards.settle();
    expect(peer.serves).toHaveLength(0);
    expect(node.pins).toBe(0);
  });
});

describe('towards a kvpeer, which quarantines', () => {
  it('writes have until quarantineMaxMs', () => {
    const { node, peer } = writing({ isKvpeer: true });
    node.advance(599_999);
    expect(peer.serves[0].isCancelled).toBe(false);
    node.advance(1);
    expect(peer.counted.get('hardStop')).toBe(1);
    expect(peer.sent()).toEqual(['transfer_done r1#0 false']);
  });

  it('an aborted write posts nothing more, and is hard-stopped after plainStopMs', () => {
    const { node, peer } = writing({ isKvpeer: true });
    peer.abort('r1', 0);
    expect(peer.serves[0].isCancelled).toBe(true);
    node.advance(34_999);
    expect(peer.counted.get('hardStop')).toBeUndefined();
    node.advance(1);
    expect(peer.counted.get('hardStop')).toBe(1);
    expect(peer.sent()).toEqual(['abort_ack r1#0']);
  });

  it('the end of the session leaves unfinished writes plainAbortMs, and waits for them', () => {
    const { node, peer } = writing({ isKvpeer: true });
    peer.end();
    expect(peer.serves[0].isCancelled).toBe(true);
    node.advance(4_999);
    expect(peer.producer.isDrained()).toBe(false);
    expect(node.pins).toBe(1);
    node.advance(1);
    expect(peer.counted.get('hardStop')).toBe(1);
    expect(peer.drainedCount).toBe(1);
    expect(node.pins).toBe(0);
  });

  it('a session whose writes end by themselves is drained without a hard stop', () => {
    const { node, peer } = writing({ isKvpeer: true });
    peer.end();
    peer.endServe();
    expect(peer.drainedCount).toBe(1);
    node.advance(60_000);
    expect(peer.counted.get('hardStop')).toBeUndefined();
    expect(peer.sent()).toEqual([]);
  });

  it('a demand waits as long as stored blocks wait for their fetch', () => {
    const node = new NodeHarness();
    const peer = node.session({ isKvpeer: true });
    peer.fetch('pd', 0, 1);
    node.advance(59_999);
    expect(peer.sent()).toEqual([]);
    node.advance(1);
    expect(peer.sent()).toEqual(['transfer_done pd#0 false']);
  });
});

describe('the hard stop', () => {
  it("cuts the peer's other writes too: they are answered with false, and one stop serves all", () => {
    const { node, peer } = writing();
    node.put(2);
    peer.lookup('r2', 0, 2);
    peer.fetch('r2', 0, 2);
    peer.sent();
    peer.abort('r1', 0);
    node.advance(5_000);
    expect(peer.sent().sort()).toEqual(['abort_ack r1#0', 'transfer_done r2#0 false']);
    expect(peer.counted.get('hardStop')).toBe(1);
  });

  it('that the shards have no room for is asked for again until the write has ended', () => {
    const { node, peer } = writing();
    node.shards.failNext('hardStop', { code: 'KVPEER_BUSY' });
    node.shards.failNext('hardStop', { code: 'KVPEER_BUSY' });
    peer.abort('r1', 0);
    node.advance(5_000);
    expect(peer.serves).toHaveLength(1);
    node.advance(1_000);
    expect(peer.serves).toHaveLength(1);
    expect(peer.sent()).toEqual([]);
    node.advance(1_000);
    expect(peer.serves).toHaveLength(0);
    expect(peer.sent()).toEqual(['abort_ack r1#0']);
  });

  it('is not needed for a write whose worker died; the sockets are waited for all the same', () => {
    const { node, peer } = writing({ socketsDrainAtOnce: false });
    node.shards.failNext('serve', { code: 'KVPEER_WORKER_LOST' });
    peer.lookup('r2', 0, 1);
    peer.fetch('r2', 0, 1);
    expect(peer.sent()).toEqual(['lookup_resp r2 1']);
    peer.drainSockets();
    expect(peer.sent()).toEqual(['transfer_done r2#0 false']);
    expect(peer.counted.get('hardStop')).toBeUndefined();
  });

  it('leaves writes alone that were posted after it', () => {
    const { node, peer } = writing();
    node.put(2);
    node.shards.hold('hardStop');
    peer.abort('r1', 0);
    node.advance(5_000);
    peer.endServe(Outcome.Stopped);
    peer.lookup('r2', 0, 2);
    node.shards.resume('hardStop');
    node.shards.settle();
    peer.fetch('r2', 0, 2);
    node.advance(10_000);
    expect(peer.serves).toHaveLength(1);
    expect(peer.counted.get('hardStop')).toBe(1);
  });

  it('runs again for a write that became overdue while it ran and did not end with it', () => {
    const { node, peer } = writing();
    node.put(2);
    node.shards.hold('hardStop');
    peer.abort('r1', 0);
    node.advance(5_000);
    // Posted while the stop is under way, behind it in the ring.
    peer.lookup('r2', 0, 2);
    peer.endServe(Outcome.Stopped);
    peer.fetch('r2', 0, 2);
    expect(peer.serves).toHaveLength(1);
    peer.end();
    node.shards.resume('hardStop');
    node.shards.settle();
    expect(peer.serves).toHaveLength(0);
    expect(peer.producer.isDrained()).toBe(true);
  });
});

describe('leases and memory', () => {
  it('a lease lapses leaseMs after the last answer, not while a lookup of its round is parked', () => {
    const node = new NodeHarness();
    const peer = node.session();
    node.put(1);
    peer.lookup('r1', 0, 1);
    node.advance(28_000);
    node.reserve(2);
    peer.lookup('r1', 0, 2);
    node.advance(4_000);
    expect(node.pins).toBe(1);
    node.advance(1_000 + 29_999);
    expect(node.pins).toBe(1);
    node.advance(1);
    expect(node.pins).toBe(0);
  });

  it('a write keeps its pins when the lease time passes', () => {
    const { node, peer } = writing({ isKvpeer: true });
    node.advance(100_000);
    expect(node.pins).toBe(1);
    peer.endServe();
    expect(peer.sent()).toEqual(['transfer_done r1#0 true']);
  });

  it('a consumer that vanished leaves nothing: pins lapse, rounds are forgotten (section 10 N)', () => {
    const node = new NodeHarness();
    const peer = node.session();
    node.put(1, 2);
    node.reserve(3);
    for (let round = 0; round < 50; round++) peer.lookup('r1', round, 1, 2, 3);
    peer.fetch('pd', 0, 9);
    node.advance(5_000 + 30_000 + 60_000);
    expect(peer.producer.stats()).toEqual({ leaseCount: 0, leasePinCount: 0, parkedCount: 0, serveCount: 0 });
    expect(node.pins).toBe(0);
    expect(node.wakes).toEqual([]);
  });

  it('a fetch that has ended has no clock any more', () => {
    const { node, peer } = writing({ isKvpeer: true });
    peer.abort('r1', 0);
    peer.endServe();
    node.wakes = [];
    peer.producer.tick(node.nowMs);
    expect(node.wakes).toEqual([node.nowMs + 60_000]);
  });

  it('ticks are asked for only while something can expire', () => {
    const node = new NodeHarness();
    const peer = node.session();
    node.advance(1_000_000);
    expect(node.wakes).toEqual([]);
    node.put(1);
    peer.lookup('r1', 0, 1);
    peer.producer.onFetch(fetchMessage('r1', 0, keysOf(1), [1]));
    node.shards.settle();
    peer.endServe();
    expect(node.wakes.length).toBeLessThanOrEqual(4);
    node.advance(100_000);
    expect(node.wakes).toEqual([]);
  });
});
