// kvpeer pulls from a real vLLM by remote_kv_source: lookup, fetch, NIXL, verified bytes.

import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import { eventually, isQuiet, Kvpeer, range } from './support/kvpeer.js';
import { VllmPeer } from './support/vllm-peer.js';

const HELD = 4400;

describe('kvpeer pulls from vLLM by remote_kv_source', () => {
  let vllm: VllmPeer;
  let kvpeer: Kvpeer;
  let nextId = 1;

  beforeAll(async () => {
    [vllm, kvpeer] = await Promise.all([
      VllmPeer.start({ args: ['--blocks', '8192', '--block-bytes', '4096', '--count', String(HELD)] }),
      Kvpeer.start(),
    ]);
  });

  afterAll(async () => {
    await Promise.all([vllm.destroy(), kvpeer.destroy()]);
  });

  const source = (): object => ({ remote_kv_source: vllm.named(`pull-${nextId++}`) });

  /** Nothing that the pull took is still held, at either end. */
  async function expectNothingHeld(): Promise<void> {
    await eventually(() => kvpeer.levels(), isQuiet);
    await eventually(
      () => vllm.stats(),
      ({ jobs, sessions }) => jobs === 0 && sessions[kvpeer.address].store_jobs === 0,
    );
  }

  it('all blocks hit', async () => {
    const { hits, load } = await kvpeer.pull(source(), range(0, 63));
    expect(hits).toEqual(range(0, 63));
    expect(load).toMatchObject({ loaded: range(0, 63), pulledCount: 64, bad: [] });
    await expectNothingHeld();
  });

  it('no block hits', async () => {
    const { hits, load } = await kvpeer.pull(source(), range(HELD, HELD + 63));
    expect(hits).toEqual([]);
    expect(load.pulledCount).toBe(0);
    await expectNothingHeld();
  });

  it('some blocks hit, in between as well', async () => {
    const asked = [100, HELD, 101, HELD + 1, 102, 103, HELD + 2];
    const { hits, load } = await kvpeer.pull(source(), asked);
    expect(hits).toEqual([100, 101, 102, 103]);
    expect(load).toMatchObject({ loaded: [100, 101, 102, 103], pulledCount: 4, bad: [] });
  });

  it('keys that are probed twice get their answer twice', async () => {
    const { hits, load } = await kvpeer.pull(source(), [110, 111, 110, HELD, 111, HELD]);
    expect(hits).toEqual([110, 111, 110, 111]);
    expect(load).toMatchObject({ loaded: [110, 111], pulledCount: 2, bad: [] });
    await expectNothingHeld();
  });

  it('one key', async () => {
    const { load } = await kvpeer.pull(source(), [120]);
    expect(load).toMatchObject({ loaded: [120], pulledCount: 1, bad: [] });
  });

  it('4,096 keys', async () => {
    await kvpeer.evict(range(0, HELD - 1));
    const { hits, load } = await kvpeer.pull(source(), range(0, 4095));
    expect(hits).toHaveLength(4096);
    expect(load.loaded).toHaveLength(4096);
    expect(load).toMatchObject({ pulledCount: 4096, bad: [] });
    await expectNothingHeld();
  });

  it('eight requests at once', async () => {
    await kvpeer.evict(range(0, HELD - 1));
    const parts = Array.from({ length: 8 }, (_, i) => range(i * 100, i * 100 + 99));
    const pulls = await Promise.all(parts.map((part) => kvpeer.pull(source(), part)));
    for (const [i, { load }] of pulls.entries()) {
      expect(load).toMatchObject({ loaded: parts[i], pulledCount: 100, bad: [] });
    }
    await expectNothingHeld();
  });

  it('twenty rounds on one id', async () => {
    await kvpeer.evict(range(0, HELD - 1));
    const request = await kvpeer.open(source());
    for (let round = 0; round < 20; round++) {
      const part = range(round * 10, round * 10 + 9);
      expect((await kvpeer.lookup(request, part)).hits).toEqual(part);
      const load = await kvpeer.load(request, part);
      expect(load).toMatchObject({ loaded: part, pulledCount: 10, bad: [] });
      await kvpeer.release(load.loadId);
    }
    await kvpeer.finish(request);
    await expectNothingHeld();
  });

  it('what was probed and not fetched is released when the request ends', async () => {
    await kvpeer.evict(range(0, HELD - 1));
    const request = await kvpeer.open(source());
    expect((await kvpeer.lookup(request, range(0, 31))).hits).toHaveLength(32);
    const pinned = (await vllm.stats()).sessions[kvpeer.address].store_jobs;
    expect(pinned).toBeGreaterThan(0);
    await kvpeer.finish(request);
    await expectNothingHeld();
  });
});
