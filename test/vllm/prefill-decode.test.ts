// Prefill and decode on different engines, kvpeer on either side, and the legal pair in the middle.

import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import { eventually, isQuiet, Kvpeer, range } from './support/kvpeer.js';
import { VllmPeer } from './support/vllm-peer.js';

const BLOCKS = ['--blocks', '2048', '--block-bytes', '4096'];
/** vLLM keeps stores that nobody fetches 60 s; two seconds here. */
const SHORT_HOLD = ['--tier-json', '{"unbound_store_timeout_s": 2}'];
const UNCLAIMED_MS = 1_000;

describe('prefill and decode', () => {
  let vllm: VllmPeer;
  let decoder: VllmPeer;
  let kvpeer: Kvpeer;
  let nextId = 1;

  beforeAll(async () => {
    [vllm, decoder, kvpeer] = await Promise.all([
      VllmPeer.start({ args: [...BLOCKS, ...SHORT_HOLD, '--first', '1000', '--count', '64'] }),
      VllmPeer.start({ args: BLOCKS }),
      Kvpeer.start({ unclaimedStoreMs: UNCLAIMED_MS }),
    ]);
  });

  afterAll(async () => {
    await Promise.all([vllm.destroy(), decoder.destroy(), kvpeer.destroy()]);
  });

  const newId = (): string => `pd-${nextId++}`;

  async function expectNothingHeld(): Promise<void> {
    await eventually(() => kvpeer.levels(), isQuiet);
    await eventually(
      () => vllm.stats(),
      ({ jobs }) => jobs === 0,
    );
  }

  describe('kvpeer decodes from a vLLM prefiller', () => {
    /** Every block is expected: a load without a lookup, as an engine in the decode role does. */
    async function decode(id: string, indexes: readonly number[]): ReturnType<Kvpeer['load']> {
      const request = await kvpeer.open({ remote_prefiller: vllm.named(id) });
      const load = await kvpeer.load(request, indexes);
      await kvpeer.release(load.loadId);
      await kvpeer.finish(request);
      return load;
    }

    it('whose blocks were stored before the fetch', async () => {
      const id = newId();
      vllm.store(`id=${id};blocks=0-31`);
      await vllm.event(({ event, kv_request_id }) => event === 'prefill_finished' && kv_request_id === id);
      const load = await decode(id, range(0, 31));
      expect(load).toMatchObject({ loaded: range(0, 31), pulledCount: 32, bad: [] });
      await expectNothingHeld();
    });

    it('whose blocks are stored after the fetch', async () => {
      const id = newId();
      vllm.store(`id=${id};blocks=40-71;when=fetch;delay=200`);
      const load = await decode(id, range(40, 71));
      expect(load).toMatchObject({ loaded: range(40, 71), pulledCount: 32, bad: [] });
      await expectNothingHeld();
    });

    it('whose blocks are stored in several batches', async () => {
      const id = newId();
      vllm.store(`id=${id};blocks=80-111;when=fetch;delay=50;batch=8;gap=50`);
      const load = await decode(id, range(80, 111));
      expect(load).toMatchObject({ loaded: range(80, 111), pulledCount: 32, bad: [] });
      await expectNothingHeld();
    });

    it('that finishes early: the rest is missed at once', async () => {
      const id = newId();
      vllm.store(`id=${id};blocks=120-135;when=fetch`);
      const load = await decode(id, range(120, 151));
      expect(load.pulledCount).toBe(0);
      expect(load.ms).toBeLessThan(5_000);
      await expectNothingHeld();
    });

    it('whose stores were reaped because nobody fetched them: missed at once', async () => {
      const id = newId();
      const from = vllm.events.length;
      vllm.store(`id=${id};blocks=160-167`);
      await vllm.event(({ event }) => event === 'prefill_finished', 10_000, from);
      await eventually(
        () => vllm.stats(),
        ({ jobs }) => jobs === 0,
      );
      const load = await decode(id, range(160, 167));
      expect(load).toMatchObject({ loaded: [], pulledCount: 0 });
      expect(load.ms).toBeLessThan(5_000);
    });
  });

  describe('vLLM decodes from a kvpeer prefiller', () => {
    const decodeParams = (id: string): { remote: string; mode: 'remote_prefiller'; kvRequestId: string } => ({
      remote: kvpeer.address,
      mode: 'remote_prefiller',
      kvRequestId: id,
    });

    it('whose blocks were stored before the fetch', async () => {
      const id = newId();
      const request = await kvpeer.open({ remote_decoder: { kv_request_id: id } });
      await kvpeer.storeFor(request, range(200, 231));
      await kvpeer.finish(request);
      const pull = await vllm.pull({ ...decodeParams(id), keys: '200-231' });
      expect(pull).toMatchObject({ loaded: 32, missing: [], bad: [] });
      await expectNothingHeld();
    });

    it('whose blocks are stored after the fetch, in batches', async () => {
      const id = newId();
      const request = await kvpeer.open({ remote_decoder: { kv_request_id: id } });
      vllm.beginPull({ ...decodeParams(id), keys: '240-271' });
      await eventually(
        () => vllm.stats(),
        ({ sessions }) => sessions[kvpeer.address].ready,
      );
      for (const first of [240, 248, 256, 264]) await kvpeer.storeFor(request, range(first, first + 7));
      await kvpeer.finish(request);
      expect(await vllm.pulled(id)).toMatchObject({ loaded: 32, missing: [], bad: [] });
      await expectNothingHeld();
    });

    it('that holds the blocks already', async () => {
      await kvpeer.store(range(280, 295));
      const id = newId();
      const request = await kvpeer.open({ remote_decoder: { kv_request_id: id } });
      await kvpeer.storeFor(request, range(280, 295));
      await kvpeer.finish(request);
      const pull = await vllm.pull({ ...decodeParams(id), keys: '280-295' });
      expect(pull).toMatchObject({ loaded: 16, missing: [], bad: [] });
    });

    it('that finishes early: unmet demand fails at once', async () => {
      const id = newId();
      const request = await kvpeer.open({ remote_decoder: { kv_request_id: id } });
      vllm.beginPull({ ...decodeParams(id), keys: '300-331' });
      await kvpeer.storeFor(request, range(300, 315));
      await kvpeer.finish(request);
      const pull = await vllm.pulled(id);
      expect(pull).toMatchObject({ loaded: 0, bad: [] });
      // vLLM's own clock for a load is 30 s.
      expect(pull.totalMs).toBeLessThan(5_000);
      await expectNothingHeld();
    });

    it('whose blocks nobody fetches: they are released, and a late fetch fails at once', async () => {
      const id = newId();
      const request = await kvpeer.open({ remote_decoder: { kv_request_id: id } });
      await kvpeer.storeFor(request, range(340, 355));
      await kvpeer.finish(request);
      expect((await kvpeer.levels()).pins).toBeGreaterThan(0);
      await eventually(
        () => kvpeer.levels(),
        ({ pins }) => pins === 0,
        UNCLAIMED_MS + 5_000,
      );
      const pull = await vllm.pull({ ...decodeParams(id), keys: '340-355' });
      expect(pull).toMatchObject({ loaded: 0, bad: [] });
      expect(pull.totalMs).toBeLessThan(5_000);
    });
  });

  it('the legal pair: kvpeer pulls from one vLLM and keeps the blocks for another', async () => {
    const [pullId, holdId] = [newId(), newId()];
    const request = await kvpeer.open({
      remote_kv_source: vllm.named(pullId),
      remote_decoder: { kv_request_id: holdId },
    });
    expect((await kvpeer.lookup(request, range(1000, 1063))).hits).toHaveLength(64);
    const load = await kvpeer.load(request, range(1000, 1063));
    expect(load).toMatchObject({ pulledCount: 64, bad: [] });
    await kvpeer.storeFor(request, range(1000, 1095));
    await kvpeer.release(load.loadId);
    await kvpeer.finish(request);
    const pull = await decoder.pull({
      remote: kvpeer.address,
      mode: 'remote_prefiller',
      kvRequestId: holdId,
      keys: '1000-1095',
    });
    expect(pull).toMatchObject({ loaded: 96, missing: [], bad: [] });
    await expectNothingHeld();
  });

  it('the legal pair at vLLM: its pull from kvpeer goes as any other', async () => {
    await kvpeer.store(range(1200, 1231));
    const holdId = newId();
    const pull = await vllm.pull({ remote: kvpeer.address, keys: '1200-1231', decoderId: holdId });
    expect(pull).toMatchObject({ loaded: 32, missing: [], bad: [] });
  });
});
