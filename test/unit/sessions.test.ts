// The sessions of nodes that speak to each other in memory: how they come up, end, come back, and who gets one.

import { describe, expect, it } from 'vitest';
import { Outcome } from '../../src/shared/operations.js';
import { writeConnectAck, writeDisconnect, writeLookup } from '../../src/main/protocol/write.js';
import { KEY_BYTES, keysOf } from '../fixtures/producer-harness.js';
import type { FakeNode, FakeNodeOptions } from '../fixtures/session-network.js';
import {
  connectFrom,
  FakeNetwork,
  hitsOf,
  load,
  loadedOf,
  lookup,
  packedKeys,
  releaseAll,
} from '../fixtures/session-network.js';

const A = '10.0.0.1:1';
const B = '10.0.0.2:1';
const EMPTY = { pins: 0, openSets: 0, writing: 0, quarantined: 0, waiting: 0 };

interface Pair {
  readonly network: FakeNetwork;
  readonly a: FakeNode;
  readonly b: FakeNode;
}

function pair(optionsOfA: FakeNodeOptions = {}, optionsOfB: FakeNodeOptions = {}): Pair {
  const network = new FakeNetwork();
  return { network, a: network.node(A, optionsOfA), b: network.node(B, optionsOfB) };
}

/** One block from the other side, with everything given back. */
async function pull(from: FakeNode, to: FakeNode, id: string, key: number): Promise<string> {
  to.put(key);
  const session = await from.session(to.address);
  const asked = lookup(session, id, key);
  await from.network.settle();
  if (hitsOf(asked.results.at(0)) !== '1') return 'miss';
  const loaded = load(session, id, key);
  await from.network.settle();
  session.consumer.finish(id);
  await from.network.settle();
  releaseAll(from.shards, loaded.results.at(0));
  return loadedOf(loaded.results.at(0)) === '1' ? 'pulled' : 'failed';
}

describe('two nodes', () => {
  it('shake hands, look up, fetch, publish and finish', async () => {
    const { network, a, b } = pair();
    b.put(1, 2, 3);
    const session = await a.session(B);
    expect(session.phase).toBe('ready');
    expect(b.sessions.find(A)?.phase).toBe('ready');
    const asked = lookup(session, 'r', 1, 9, 2);
    await network.settle();
    expect(hitsOf(asked.results[0])).toBe('101');
    const loaded = load(session, 'r', 1, 2);
    await network.settle();
    expect(loadedOf(loaded.results[0])).toBe('11');
    expect(loaded.results[0].pulledCount).toBe(2);
    expect(a.phases(1, 2)).toEqual(['ready', 'ready']);
    releaseAll(a.shards, loaded.results[0]);
    session.consumer.finish('r');
    await network.settle();
    expect(a.shards.totals()).toMatchObject(EMPTY);
    expect(b.shards.totals()).toMatchObject(EMPTY);
  });

  it.each([
    ['kvpeer', 'plain'],
    ['plain', 'kvpeer'],
    ['plain', 'plain'],
  ])('work together as %s and %s', async (ofA, ofB) => {
    const { a, b } = pair({ isKvpeer: ofA === 'kvpeer' }, { isKvpeer: ofB === 'kvpeer' });
    expect(await pull(a, b, 'r', 1)).toBe('pulled');
    expect(await pull(b, a, 'r', 2)).toBe('pulled');
    expect(a.shards.totals()).toMatchObject(EMPTY);
    expect(b.shards.totals()).toMatchObject(EMPTY);
  });

  it('that dial each other at once have one session, with one connect each', async () => {
    const { network, a, b } = pair();
    a.sessions.acquire(B, () => undefined);
    b.sessions.acquire(A, () => undefined);
    await network.settle();
    expect(a.sessions.countByPhase()).toMatchObject({ ready: 1, draining: 0 });
    expect(b.sessions.countByPhase()).toMatchObject({ ready: 1, draining: 0 });
    expect(a.received).toEqual(['connect', 'connect_ack']);
    expect(b.received).toEqual(['connect', 'connect_ack']);
  });

  it('pull what a first request asked for before the handshake was over (section 10 number 17)', async () => {
    const { network, a, b } = pair();
    b.put(1);
    let result = '';
    a.sessions.acquire(B, (session) => {
      if (typeof session === 'string') throw new Error(session);
      session.consumer.load('r', packedKeys(keysOf(1)), {}, (loaded) => {
        result = loadedOf(loaded);
        releaseAll(a.shards, loaded);
      });
    });
    await network.settle();
    expect(result).toBe('1');
  });

  it('of which one has no data plane answer fetches with false and publish nothing', async () => {
    const { network, a, b } = pair({ dataPlane: 'none' }, { dataPlane: 'none' });
    b.put(1);
    const session = await a.session(B);
    const asked = lookup(session, 'r', 1);
    await network.settle();
    expect(hitsOf(asked.results[0])).toBe('1');
    const loaded = load(session, 'r', 1);
    await network.settle();
    expect(loadedOf(loaded.results[0])).toBe('0');
    releaseAll(a.shards, loaded.results[0]);
    session.consumer.finish('r');
    await network.settle();
    expect(a.shards.totals()).toMatchObject({ ...EMPTY, ready: 0 });
    expect(b.shards.totals()).toMatchObject(EMPTY);
  });

  it('serve and load in one session at the same time', async () => {
    const { network, a, b } = pair();
    a.put(1);
    b.put(2);
    const atA = await a.session(B);
    const atB = await b.session(A);
    const [toA, toB] = [load(atA, 'r', 2), load(atB, 'r', 1)];
    await network.settle();
    expect(loadedOf(toA.results[0])).toBe('1');
    expect(loadedOf(toB.results[0])).toBe('1');
  });
});

describe('a handshake', () => {
  it.each([
    ['block length (section 10 number 10)', { blockBytes: 8_192 }, 'block_len'],
    ['hash seed (section 10 number 21)', { hashSeed: 'other' }, 'hash_seed'],
    ['fingerprint', { fingerprint: 'f2' }, 'config_fingerprint'],
  ])(
    'of nodes that differ in their %s is refused on both sides within a second (section 10 D)',
    async (_what, options, field) => {
      const { network, a, b } = pair({ fingerprint: 'f1' }, { fingerprint: 'f1', ...options });
      await a.acquire(B);
      await network.advance(900);
      for (const node of [a, b]) {
        expect(node.counted.get(`rejection mismatch_${field}`)).toBe(1);
        expect(node.sessions.countByPhase()).toEqual({
          dialling: 0,
          registering: 0,
          acknowledging: 0,
          ready: 0,
          draining: 0,
        });
        expect(node.shards.asked).not.toContain('addPeer');
      }
    },
  );

  it('with a fingerprint on one side only is accepted', async () => {
    const { a } = pair({ fingerprint: 'f1' });
    expect((await a.session(B)).isReady).toBe(true);
  });

  it('whose peer acknowledges before its own connect comes up all the same', async () => {
    const network = new FakeNetwork();
    const a = network.node(A);
    const peer = network.peer(B);
    const session = await a.session(B);
    const asked = lookup(session, 'r', 1);
    await peer.dial(A);
    await peer.say(writeConnectAck(B));
    expect(peer.heard()).toEqual(['connect', 'lookup r#0 (1)']);
    await peer.say(connectFrom(B));
    expect(session.isReady).toBe(true);
    expect(peer.heard()).toEqual(['connect_ack']);
    expect(asked.results).toEqual([]);
  });

  it('without an answer dials once more after 3 s, on a new connection, and ends after 30 s (section 10 number 11, B)', async () => {
    const network = new FakeNetwork();
    const a = network.node(A);
    const peer = network.peer(B);
    const session = await a.session(B);
    const asked = lookup(session, 'r', 1);
    await network.advance(2_999);
    expect(peer.heard()).toEqual(['connect']);
    await network.advance(1);
    expect(peer.goneFrom).toEqual([A]);
    expect(peer.heard()).toEqual(['connect']);
    await network.advance(26_999);
    expect(session.phase).toBe('dialling');
    expect(asked.results.map(({ reason }) => reason)).toEqual(['lookup-deadline']);
    await network.advance(1);
    expect(peer.heard()).toEqual(['disconnect']);
    expect(a.sessions.liveCount).toBe(0);
  });

  it('is never begun twice on one connection', async () => {
    const network = new FakeNetwork();
    const a = network.node(A);
    const peer = network.peer(B);
    await a.session(B);
    await peer.dial(A);
    await peer.say(writeConnectAck(B));
    await network.advance(29_000);
    expect(peer.heard()).toEqual(['connect']);
  });

  it('is not waited for as long when the host is suspected, until it shows a sign of life (section 10 number 12)', async () => {
    const network = new FakeNetwork();
    const a = network.node(A);
    await a.acquire('10.0.0.2:7');
    expect(a.sessions.liveCount).toBe(0);
    network.silent.add(B);
    const session = await a.session(B);
    await network.advance(999);
    expect(session.isOver).toBe(false);
    await network.advance(1);
    expect(session.isOver).toBe(true);

    const peer = network.peer('10.0.0.2:3');
    const alive = await a.session(peer.address);
    await peer.dial(A);
    await peer.say(connectFrom(peer.address));
    await network.advance(5_000);
    expect(alive.phase).toBe('acknowledging');
    await peer.say(writeConnectAck(peer.address));
    expect(alive.isReady).toBe(true);
  });

  it('that the data plane refuses ends the session, and the other side is told (section 10 number 9, 16)', async () => {
    const { network, a, b } = pair();
    b.shards.refusedMetadata.add(`${A} ${a.incarnationId}`);
    const session = await a.session(B);
    const asked = lookup(session, 'r', 1);
    await network.advance(1_000);
    expect(asked.results.map(({ reason }) => reason)).toEqual(['peer-down']);
    expect(a.sessions.liveCount).toBe(0);
    expect(b.sessions.liveCount).toBe(0);
  });

  it('bounds what waits for it (section 10 M)', async () => {
    const network = new FakeNetwork();
    const a = network.node(A);
    network.silent.add(B);
    const session = await a.session(B);
    const asked = Array.from({ length: 4_097 }, (_, i) => lookup(session, `r${i}`, 1));
    expect(session.isOver).toBe(false);
    await network.settle();
    expect(session.isOver).toBe(true);
    expect(asked.every(({ results }) => results.length === 1)).toBe(true);
  });
});

describe('a peer', () => {
  it('that does not listen is a miss at once, and left alone for longer each time', async () => {
    const network = new FakeNetwork();
    const a = network.node(A);
    const waits: (number | string)[] = [];
    for (let i = 0; i < 4; i++) {
      let waitedMs = 0;
      while ((await a.acquire(B)) === 'backoff') {
        await network.advance(500);
        waitedMs += 500;
      }
      waits.push(waitedMs);
    }
    expect(waits).toEqual([0, 0, 1_000, 2_000]);
  });

  it('that restarts at its address is a new session each time, five times over (section 10 number 1, 25)', async () => {
    const { network, a, b } = pair();
    let current = b;
    for (let i = 0; i < 5; i++) {
      expect(await pull(a, current, `r${i}`, i)).toBe('pulled');
      network.kill(current);
      current = network.node(B);
      await current.session(A);
      expect(await pull(current, a, `s${i}`, 100 + i)).toBe('pulled');
    }
    await network.settle();
    expect(a.sessions.countByPhase()).toMatchObject({ ready: 1, draining: 0 });
    expect(a.shards.peers.size).toBe(1);
    expect(a.shards.totals()).toMatchObject(EMPTY);
  });

  it('that restarts before its death was noticed takes the session over (section 10 O)', async () => {
    const network = new FakeNetwork();
    const a = network.node(A);
    const peer = network.peer(B);
    await peer.dial(A);
    await peer.say(connectFrom(B, { incarnation: 'run 1' }), writeConnectAck(B));
    const former = await a.session(B);
    const loaded = load(former, 'r', 1);
    await network.settle();
    peer.heard();
    await peer.say(connectFrom(B, { incarnation: 'run 2' }));
    expect(former.isOver).toBe(true);
    expect(loaded.results.map(({ reason }) => reason)).toEqual(['peer-down']);
    const session = a.sessions.find(B);
    expect(session?.phase).toBe('acknowledging');
    expect(peer.heard()).toEqual(['disconnect', 'connect', 'connect_ack']);
    // The earlier run cannot write any more: its slots are free again.
    expect(a.shards.totals()).toMatchObject({ quarantined: 0, writing: 0 });
  });

  it('whose stall outlived the heartbeats is dialled anew and works (section 10 number 13)', async () => {
    const { network, a, b } = pair();
    expect(await pull(a, b, 'r', 1)).toBe('pulled');
    a.sessions.onPeerGone(B);
    b.sessions.onPeerGone(A);
    await network.settle();
    expect(a.sessions.liveCount + b.sessions.liveCount).toBe(0);
    expect(a.shards.peers.size + b.shards.peers.size).toBe(0);
    expect(await pull(a, b, 'r', 2)).toBe('pulled');
    expect(await pull(b, a, 's', 3)).toBe('pulled');
  });

  it('that breaks the protocol is told, and its session ends', async () => {
    const { network, a } = pair();
    const session = await a.session(B);
    const asked = lookup(session, 'r', 1);
    a.sessions.onProtocolError(B, 'test');
    await network.settle();
    expect(session.isOver).toBe(true);
    expect(asked.results).toHaveLength(1);
  });

  it('that comes up and breaks again and again is left alone for longer each time', async () => {
    const network = new FakeNetwork();
    const a = network.node(A);
    const peer = network.peer(B);
    for (let i = 0; i < 4; i++) {
      await peer.dial(A);
      await peer.say(connectFrom(B), writeConnectAck(B));
      expect(a.sessions.find(B)?.isReady).toBe(true);
      a.sessions.onProtocolError(B, 'test');
      await network.settle();
    }
    expect(await a.acquire(B)).toBe('backoff');
    await network.advance(3_999);
    expect(await a.acquire(B)).toBe('backoff');
    await network.advance(1);
    expect(await a.acquire(B)).not.toBe('backoff');
  });

  it('that says disconnect is no fault: it may be dialled at once', async () => {
    const network = new FakeNetwork();
    const a = network.node(A);
    const peer = network.peer(B);
    for (let i = 0; i < 3; i++) {
      await a.session(B);
      await peer.dial(A);
      await peer.say(connectFrom(B), writeConnectAck(B), writeDisconnect());
      expect(a.sessions.liveCount).toBe(0);
    }
  });

  it('whose earlier connection ends late does not end the session that is being dialled (section 10 O)', async () => {
    const network = new FakeNetwork();
    const a = network.node(A);
    const peer = network.peer(B);
    await peer.dial(A);
    await peer.say(connectFrom(B), writeConnectAck(B), writeDisconnect());
    const session = await a.session(B);
    await peer.hangUp();
    expect(session.phase).toBe('dialling');
    await peer.dial(A);
    await peer.say(connectFrom(B), writeConnectAck(B));
    expect(session.isReady).toBe(true);
  });

  it('whose frames are not taken any more loses its session, not inside the call (section 10 P)', async () => {
    const { network, a, b } = pair();
    const session = await a.session(B);
    network.refuseFrames(A, B);
    const asked = lookup(session, 'r', 1);
    expect(session.isOver).toBe(false);
    await network.settle();
    expect(session.isOver).toBe(true);
    expect(asked.results.map(({ reason }) => reason)).toEqual(['peer-down']);
    expect(b.sessions.liveCount).toBe(0);
  });

  it('a write to which had to be cut is remembered as faulty', async () => {
    const { network, a, b } = pair({ servesEnd: false }, { isKvpeer: false });
    a.put(1);
    const atB = await b.session(A);
    load(atB, 'r', 1);
    await network.settle();
    expect(a.serves).toHaveLength(1);
    atB.consumer.finish('r');
    await network.advance(5_000);
    expect(a.counted.get('hardStop')).toBe(1);
    network.kill(b);
    await network.settle();
    expect(await a.acquire(B)).toBe('backoff');
  });
});

describe('who gets a session', () => {
  it('is bounded: the next peer is refused on both ways, and counted (section 10 number 18)', async () => {
    const network = new FakeNetwork();
    const a = network.node(A, { limits: { maxPeers: 2 } });
    for (const port of [1, 2, 3]) network.node(`10.0.0.2:${port}`);
    const third = network.node('10.0.0.2:4');
    await a.session('10.0.0.2:1');
    await a.session('10.0.0.2:2');
    expect(await a.acquire('10.0.0.2:3')).toBe('peer-cap');
    await third.acquire(A);
    expect(a.sessions.liveCount).toBe(2);
    expect(a.counted.get('rejection peer_cap')).toBe(2);
    expect(network.links.filter((link) => link.from === a)).toHaveLength(2);
  });

  it('makes room by ending the one that was idle longest, and none that is at work (section 10 N)', async () => {
    const network = new FakeNetwork();
    const a = network.node(A, { limits: { maxPeers: 2 } });
    const [first, second, third] = [1, 2, 3].map((port) => network.node(`10.0.0.2:${port}`));
    const busy = await a.session(first.address);
    first.put(1);
    lookup(busy, 'r', 1);
    await a.session(second.address);
    await network.advance(60_000);
    expect(await a.acquire(third.address)).not.toBe('peer-cap');
    expect(a.sessions.find(first.address)).toBe(busy);
    expect(a.sessions.find(second.address)).toBeUndefined();
    expect(second.sessions.liveCount).toBe(0);
  });

  it('is not this node itself (section 10 number 16)', async () => {
    const network = new FakeNetwork();
    const a = network.node(A);
    expect(await a.acquire(A)).toBe('self');
    a.receive(A, connectFrom(A));
    expect(a.counted.get('rejection own_identity')).toBe(1);
    expect(a.sessions.liveCount).toBe(0);
  });

  it('is nobody before a complete, valid connect: no connection is opened (R.10 many-identities-exhaust-sockets)', async () => {
    const network = new FakeNetwork();
    const a = network.node(A);
    for (let i = 0; i < 400; i++) a.receive(`10.0.1.1:${i + 1}`, writeLookup('r', keysOf(1), KEY_BYTES, 0));
    for (let i = 0; i < 400; i++)
      a.receive(`10.0.1.2:${i + 1}`, Buffer.from('81a474797065a7636f6e6e656374', 'hex'));
    await network.settle();
    expect(network.links).toEqual([]);
    expect(a.sessions.liveCount).toBe(0);
  });

  it('is no address that cannot be dialled', async () => {
    const network = new FakeNetwork();
    const a = network.node(A);
    network.badAddresses.add('nonsense');
    expect(await a.acquire('nonsense')).toBe('bad-address');
    expect(a.counted.get('rejection bad_address')).toBe(1);
  });
});

describe('a session that ended while it was writing', () => {
  it('holds its successor back until nothing of it can land', async () => {
    const { network, a, b } = pair({ servesEnd: false });
    a.put(1, 2);
    const atB = await b.session(A);
    load(atB, 'r', 1);
    await network.settle();
    expect(a.serves).toHaveLength(1);
    a.sessions.find(B)?.end('protocol-error');
    await network.settle();
    expect(b.shards.totals()).toMatchObject({ quarantined: 1 });
    let successor: unknown;
    a.sessions.acquire(B, (session) => {
      successor = session;
    });
    b.sessions.acquire(A, () => undefined);
    await network.settle();
    // B's own connect waits at A, too.
    expect(successor).toBeUndefined();
    expect(a.sessions.liveCount).toBe(0);
    expect(b.shards.totals()).toMatchObject({ quarantined: 1 });
    a.serves[0].end(Outcome.Ok);
    await network.settle();
    expect(successor).toBe(a.sessions.find(B));
    expect(a.sessions.find(B)?.isReady).toBe(true);
    // Our connect told the other side that nothing can land any more.
    expect(b.shards.totals()).toMatchObject({ quarantined: 0, writing: 0 });
  });

  it('does not begin a session for a peer that has gone again', async () => {
    const network = new FakeNetwork();
    const a = network.node(A, { servesEnd: false });
    const b = network.node(B);
    a.put(1);
    load(await b.session(A), 'r', 1);
    await network.settle();
    a.sessions.find(B)?.end('protocol-error');
    await network.settle();
    await b.acquire(A);
    network.kill(b);
    await network.settle();
    a.serves[0].end(Outcome.Ok);
    await network.settle();
    expect(a.sessions.countByPhase()).toMatchObject({ dialling: 0, acknowledging: 0, draining: 0 });
  });
});

describe('recycling the receive agent', () => {
  it('ends every session, waits until all have gone, and serves who came meanwhile afterwards', async () => {
    const { network, a, b } = pair();
    const former = await a.session(B);
    let isEmpty = false;
    a.sessions.pause('recycling', () => {
      isEmpty = true;
    });
    await network.settle();
    expect(isEmpty).toBe(true);
    expect(former.isOver).toBe(true);
    expect(b.sessions.liveCount).toBe(0);
    let own: unknown;
    a.sessions.acquire(B, (session) => {
      own = session;
    });
    await b.acquire(A);
    expect(a.sessions.liveCount).toBe(0);
    expect(own).toBeUndefined();
    a.sessions.resume();
    await network.settle();
    expect(own).toBe(a.sessions.find(B));
    expect(a.sessions.find(B)?.isReady).toBe(true);
    expect(await pull(b, a, 'r', 1)).toBe('pulled');
  });

  it('waits for writes under way', async () => {
    const { network, a, b } = pair({ servesEnd: false });
    a.put(1);
    load(await b.session(A), 'r', 1);
    await network.settle();
    let isEmpty = false;
    a.sessions.pause('recycling', () => {
      isEmpty = true;
    });
    await network.settle();
    expect(isEmpty).toBe(false);
    await network.advance(5_000);
    expect(a.counted.get('hardStop')).toBe(1);
    expect(isEmpty).toBe(true);
  });

  it('frees what had no other end', async () => {
    const network = new FakeNetwork();
    const a = network.node(A);
    const peer = network.peer(B);
    await peer.dial(A);
    await peer.say(connectFrom(B), writeConnectAck(B));
    load(await a.session(B), 'r', 1);
    await network.settle();
    await peer.say(writeDisconnect());
    expect(a.shards.totals().quarantined).toBe(1);
    a.quarantine.onRecycled();
    await network.settle();
    expect(a.shards.totals().quarantined).toBe(0);
  });
});

describe('a node that closes', () => {
  it('tells its peers, and answers who waits that there will be no session', async () => {
    const { network, a, b } = pair({ servesEnd: false });
    a.put(1);
    load(await b.session(A), 'r', 1);
    await network.settle();
    a.sessions.find(B)?.end('protocol-error');
    const answers: unknown[] = [];
    a.sessions.acquire(B, (session) => answers.push(session));
    let isClosed = false;
    a.sessions.pause('closed', () => {
      isClosed = true;
    });
    expect(answers).toEqual(['closed']);
    await network.advance(5_000);
    expect(isClosed).toBe(true);
    a.sessions.resume();
    a.sessions.acquire(B, (session) => answers.push(session));
    expect(answers).toEqual(['closed', 'closed']);
    await b.acquire(A);
    expect(a.sessions.liveCount).toBe(0);
  });
});
