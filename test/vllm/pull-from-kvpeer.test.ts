// A real vLLM pulls from kvpeer by remote_kv_source; what kvpeer pulled from one vLLM is served to another.

import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import { eventually, isQuiet, Kvpeer, range } from './support/kvpeer.js';
import { VllmPeer } from './support/vllm-peer.js';

const HELD = 8000;

describe('vLLM pulls from kvpeer by remote_kv_source', () => {
  let vllm: VllmPeer;
  let kvpeer: Kvpeer;

  beforeAll(async () => {
    [vllm, kvpeer] = await Promise.all([
      VllmPeer.start({ args: ['--blocks', '16384', '--block-bytes', '4096'] }),
      // One request pins 4,096 blocks of them: a quarter of the pool.
      Kvpeer.start({ poolBytes: 20_000 * 4096 }),
    ]);
    await kvpeer.store(range(0, HELD - 1));
  });

  afterAll(async () => {
    await Promise.all([vllm.destroy(), kvpeer.destroy()]);
  });

  it('all blocks hit', async () => {
    const pull = await vllm.pull({ remote: kvpeer.address, keys: '0-63' });
    expect(pull).toMatchObject({ loaded: 64, missing: [], bad: [] });
    await eventually(() => kvpeer.levels(), isQuiet);
  });

  it('no block hits, and the empty fetch leaves nothing behind', async () => {
    const pull = await vllm.pull({ remote: kvpeer.address, keys: `${HELD}-${HELD + 63}` });
    expect(pull).toMatchObject({ loaded: 0, bad: [] });
    await eventually(() => kvpeer.levels(), isQuiet, 2_000);
  });

  it('some blocks hit', async () => {
    const pull = await vllm.pull({ remote: kvpeer.address, keys: `100-131,${HELD}-${HELD + 7},132-139` });
    expect(pull).toMatchObject({ loaded: 40, missing: range(HELD, HELD + 7), bad: [] });
    await eventually(() => kvpeer.levels(), isQuiet, 2_000);
  });

  it('keys that are probed twice', async () => {
    const pull = await vllm.pull({ remote: kvpeer.address, keys: '200-203,200-203' });
    expect(pull).toMatchObject({ loaded: 8, missing: [], bad: [] });
  });

  it('one key', async () => {
    expect(await vllm.pull({ remote: kvpeer.address, keys: '210' })).toMatchObject({ loaded: 1, bad: [] });
  });

  it('4,096 keys', async () => {
    const pull = await vllm.pull({ remote: kvpeer.address, keys: '300-4395' });
    expect(pull).toMatchObject({ loaded: 4096, missing: [], bad: [] });
    await eventually(() => kvpeer.levels(), isQuiet);
  });

  it('eight requests at once', async () => {
    const ids = Array.from({ length: 8 }, (_, i) =>
      vllm.beginPull({ remote: kvpeer.address, keys: `${5000 + i * 100}-${5099 + i * 100}` }),
    );
    for (const id of ids) {
      expect(await vllm.pulled(id)).toMatchObject({ loaded: 100, missing: [], bad: [] });
    }
  });

  it('ten rounds on one id', async () => {
    for (let round = 0; round < 10; round++) {
      // The harness tells requests of one id apart by their end alone: each id ends before it is used again.
      const from = vllm.events.length;
      vllm.beginPull({
        remote: kvpeer.address,
        keys: `${6000 + round * 8}-${6007 + round * 8}`,
        kvRequestId: 'again',
      });
      const end = await vllm.event(
        ({ event }) => event === 'verified' || event === 'bad_bytes',
        30_000,
        from,
      );
      expect(end).toMatchObject({ event: 'verified', loaded: 8, missing: [] });
    }
    await eventually(() => kvpeer.levels(), isQuiet);
  });

  it('blocks that were probed and could not be fetched are released by the empty fetch', async () => {
    const full = await VllmPeer.start({
      args: ['--blocks', '4', '--block-bytes', '4096', '--store', `id=held;blocks=${HELD}-${HELD + 3}`],
    });
    try {
      const pull = await full.pull({ remote: kvpeer.address, keys: '7000-7003' });
      expect(pull).toMatchObject({ loaded: 0, bad: [] });
      // Far below the 30 s of a lease.
      await eventually(() => kvpeer.levels(), isQuiet, 3_000);
    } finally {
      await full.destroy();
    }
  });

  it('blocks that kvpeer pulled from a first vLLM are served to a second one', async () => {
    const first = await VllmPeer.start({
      args: ['--blocks', '256', '--block-bytes', '4096', '--first', '9000', '--count', '64'],
    });
    const { load } = await kvpeer.pull({ remote_kv_source: first.named('relay') }, range(9000, 9063));
    expect(load).toMatchObject({ pulledCount: 64, bad: [] });
    await first.destroy();
    const pull = await vllm.pull({ remote: kvpeer.address, keys: '9000-9063' });
    expect(pull).toMatchObject({ loaded: 64, missing: [], bad: [] });
  });
});
