// Two nodes' session layers speaking to each other: consumer against producer, in memory.

import { describe, expect, it } from 'vitest';
import { FakeNetwork, hitsOf, load, loadedOf, lookup, releaseAll } from '../fixtures/session-network.js';

describe('two nodes', () => {
  it('shake hands, look up, fetch, publish and finish', async () => {
    const network = new FakeNetwork();
    const a = network.node('10.0.0.1:1');
    const b = network.node('10.0.0.2:1');
    b.put(1, 2, 3);
    const session = await a.session(b.address);
    expect(session.phase).toBe('ready');
    expect(b.sessions.find(a.address)?.phase).toBe('ready');
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
    expect(a.shards.totals()).toMatchObject({ pins: 0, openSets: 0, writing: 0, quarantined: 0 });
    expect(b.shards.totals()).toMatchObject({ pins: 0, openSets: 0 });
  });
});
