// Death and silence of either side at every point of a pull. Requests end in time, and nothing stays taken.
//
// kvpeer runs with UCX_TLS=tcp,self, so that its published metadata offers no same-host copy: recycling its receive
// agent after --quarantine-max-ms then ends every quarantine.

import { readFile } from 'node:fs/promises';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';

import { eventually, Kvpeer, range, type Levels } from './support/kvpeer.js';
import { expectBackTo } from './support/levels.js';
import { VllmPeer } from './support/vllm-peer.js';

const BLOCK_BYTES = 65_536;
/** 96 MiB: long enough over TCP to be met half way. */
const MANY = 1536;
const BLOCKS = ['--blocks', '2048', '--block-bytes', String(BLOCK_BYTES)];
/** A step of the engine this long leaves time between its lookup and its fetch. */
const SLOW_STEPS = ['--step-ms', '1500'];
const TCP = { env: { UCX_TLS: 'tcp,self' } };
const OPTIONS = {
  ...TCP,
  blockBytes: BLOCK_BYTES,
  poolBytes: 8192 * BLOCK_BYTES,
  handshakeMs: 4_000,
  lookupMs: 6_000,
  loadMs: 2_000,
  abortAckMs: 1_000,
  quarantineMaxMs: 5_000,
} as const;
/** The longest that a request may take with these options: lookup, load and the time for its size. */
const REQUEST_MS = 6_000 + 2_000 + 2_000 + 1_000;

/** `R`, `S`, `T` (stopped) and so on: the third field of /proc/PID/stat. */
async function processState(pid: number): Promise<string> {
  const stat = await readFile(`/proc/${pid}/stat`, 'utf8');
  return stat.charAt(stat.lastIndexOf(')') + 2);
}

describe('when vLLM dies or is silent', () => {
  let kvpeer: Kvpeer;
  let vllm: VllmPeer;
  let before: Levels;

  beforeAll(async () => {
    kvpeer = await Kvpeer.start(OPTIONS);
    await kvpeer.store(range(5000, 5000 + MANY - 1));
    before = await kvpeer.levels();
  });

  afterEach(async () => {
    await vllm.destroy();
  });

  afterAll(async () => {
    await kvpeer.destroy();
  });

  describe('as the source of a pull', () => {
    beforeEach(async () => {
      vllm = await VllmPeer.start({ args: [...BLOCKS, '--count', String(MANY)] });
      await kvpeer.evict(range(0, MANY - 1));
    });

    const source = (id: string): object => ({ remote_kv_source: vllm.named(id) });

    it('killed before its ack: the lookup is a miss', async () => {
      vllm.kill('SIGSTOP');
      const request = await kvpeer.open(source('unacked'));
      const looking = kvpeer.lookup(request, range(0, 63));
      await eventually(
        () => kvpeer.levels(),
        ({ sessions }) => sessions === 1,
      );
      vllm.kill('SIGKILL');
      const { hits, ms } = await looking;
      expect(hits).toEqual([]);
      expect(ms).toBeLessThan(REQUEST_MS);
      await kvpeer.finish(request);
      await expectBackTo(kvpeer, before);
    });

    it('killed between lookup and fetch: the load is a miss', async () => {
      const request = await kvpeer.open(source('answered'));
      expect((await kvpeer.lookup(request, range(0, 63))).hits).toHaveLength(64);
      vllm.kill('SIGKILL');
      const load = await kvpeer.load(request, range(0, 63));
      expect(load).toMatchObject({ loaded: [], pulledCount: 0 });
      expect(load.ms).toBeLessThan(REQUEST_MS);
      await kvpeer.release(load.loadId);
      await kvpeer.finish(request);
      await expectBackTo(kvpeer, before);
    });

    it('killed during its write: whole blocks or none, and the slots come back', async () => {
      const whole = await kvpeer.pull(source('whole'), range(0, MANY - 1));
      expect(whole.load).toMatchObject({ pulledCount: MANY, bad: [] });
      await kvpeer.evict(range(0, MANY - 1));
      const request = await kvpeer.open(source('cut'));
      expect((await kvpeer.lookup(request, range(0, MANY - 1))).hits).toHaveLength(MANY);
      const loading = kvpeer.load(request, range(0, MANY - 1));
      await new Promise((resolve) => setTimeout(resolve, whole.load.ms / 2));
      vllm.kill('SIGKILL');
      const load = await loading;
      expect(load.bad).toEqual([]);
      expect([0, MANY]).toContain(load.loaded.length);
      expect(load.ms).toBeLessThan(REQUEST_MS);
      await kvpeer.release(load.loadId);
      await kvpeer.finish(request);
      await expectBackTo(kvpeer, before, 20_000);
    });

    it('stopped before the fetch and continued: a miss in time, then a pull as before', async () => {
      const request = await kvpeer.open(source('stopped'));
      expect((await kvpeer.lookup(request, range(0, 63))).hits).toHaveLength(64);
      vllm.kill('SIGSTOP');
      const load = await kvpeer.load(request, range(0, 63));
      expect(load).toMatchObject({ loaded: [], pulledCount: 0 });
      expect(load.ms).toBeLessThan(REQUEST_MS);
      expect((await kvpeer.levels()).ready).toBe(before.ready);
      await kvpeer.release(load.loadId);
      await kvpeer.finish(request);
      vllm.kill('SIGCONT');
      // Its late write lands in quarantined slots at most; a new request is served.
      await eventually(
        async () => (await kvpeer.pull(source('continued'), range(100, 163))).load,
        ({ pulledCount, bad }) => pulledCount === 64 && bad.length === 0,
        20_000,
      );
      await vllm.destroy();
      await expectBackTo(kvpeer, before, 20_000);
    });
  });

  describe('as the one that pulls from us', () => {
    it('killed between lookup and fetch: what was pinned for it is free at once', async () => {
      vllm = await VllmPeer.start({ args: [...BLOCKS, ...SLOW_STEPS] });
      vllm.beginPull({ remote: kvpeer.address, keys: '5000-5063' });
      await eventually(
        () => kvpeer.levels(),
        ({ leases, pins }) => leases === 1 && pins === 64,
        30_000,
      );
      await vllm.destroy();
      await expectBackTo(kvpeer, before, 3_000);
    });

    it('stopped during our write and killed: its source slots are free and its peer is gone', async () => {
      vllm = await VllmPeer.start({ args: BLOCKS, ...TCP });
      const stopped = kvpeer.stopWhenServing(vllm.pid);
      vllm.beginPull({ remote: kvpeer.address, keys: `5000-${5000 + MANY - 1}` });
      await stopped;
      expect((await kvpeer.levels()).pins).toBe(MANY);
      await vllm.destroy();
      await expectBackTo(kvpeer, before);
    });

    it('stopped during our write for three seconds and continued: it gets every byte', async () => {
      vllm = await VllmPeer.start({ args: BLOCKS, ...TCP });
      const stopped = kvpeer.stopWhenServing(vllm.pid);
      const id = vllm.beginPull({ remote: kvpeer.address, keys: `5000-${5000 + MANY - 1}` });
      await stopped;
      await new Promise((resolve) => setTimeout(resolve, 3_000));
      vllm.kill('SIGCONT');
      expect(await vllm.pulled(id)).toMatchObject({ loaded: MANY, missing: [], bad: [] });
      await vllm.destroy();
      await expectBackTo(kvpeer, before);
    });
  });
});

describe('when kvpeer is killed, vLLM lives on with its own time-outs and serves the next one', () => {
  let vllm: VllmPeer;
  let slow: VllmPeer;
  let kvpeer: Kvpeer;

  beforeAll(async () => {
    [vllm, slow] = await Promise.all([
      VllmPeer.start({ args: [...BLOCKS, '--count', String(MANY)], ...TCP }),
      VllmPeer.start({ args: [...BLOCKS, ...SLOW_STEPS] }),
    ]);
  });

  beforeEach(async () => {
    kvpeer = await Kvpeer.start(OPTIONS);
  });

  afterEach(async () => {
    await kvpeer.destroy();
  });

  afterAll(async () => {
    await Promise.all([vllm.destroy(), slow.destroy()]);
  });

  async function expectLeftAlone(peer: VllmPeer): Promise<void> {
    await eventually(
      () => peer.stats(),
      ({ jobs, sessions }) => jobs === 0 && Object.keys(sessions).length === 0,
      30_000,
    );
  }

  it('before its ack: the engine computes the blocks itself', async () => {
    // A vLLM of its own: a peer that dies with vLLM's first frame unsent leaves the I/O thread of vLLM's ZeroMQ context
    // blocked on a monitor that nobody reads (its DEALER lingers), and nobody can connect to that vLLM any more.
    const lonely = await VllmPeer.start({ args: BLOCKS });
    try {
      kvpeer.kill('SIGSTOP');
      const id = lonely.beginPull({ remote: kvpeer.address, keys: '5000-5063' });
      await eventually(
        () => lonely.stats(),
        ({ sessions }) => kvpeer.address in sessions,
      );
      await kvpeer.destroy();
      expect(await lonely.pulled(id)).toMatchObject({ loaded: 0, bad: [] });
      await expectLeftAlone(lonely);
    } finally {
      await lonely.destroy();
    }
  });

  it('between the lookup of vLLM and its fetch', async () => {
    await kvpeer.store(range(5000, 5063));
    const id = slow.beginPull({ remote: kvpeer.address, keys: '5000-5063' });
    await eventually(
      () => kvpeer.levels(),
      ({ leases }) => leases === 1,
      30_000,
    );
    await kvpeer.destroy();
    expect(await slow.pulled(id)).toMatchObject({ loaded: 0, bad: [] });
    await expectLeftAlone(slow);
  });

  it('between its own lookup and its fetch', async () => {
    const request = await kvpeer.open({ remote_kv_source: vllm.named('dies') });
    expect((await kvpeer.lookup(request, range(0, 63))).hits).toHaveLength(64);
    await kvpeer.destroy();
    await expectLeftAlone(vllm);
  });

  it('during its write to vLLM', async () => {
    await kvpeer.store(range(6000, 6000 + 255));
    const { pid } = kvpeer.process;
    if (pid === undefined) throw new Error('the process did not start');
    const id = vllm.beginPull({ remote: kvpeer.address, keys: '6000-6255' });
    // It stops itself and cannot say so.
    kvpeer.stopWhenServing(pid).catch(() => undefined);
    await eventually(
      () => processState(pid),
      (state) => state === 'T',
      60_000,
    );
    await kvpeer.destroy();
    const pull = await vllm.pulled(id);
    expect([0, 256]).toContain(pull.loaded);
    expect(pull.bad).toEqual([]);
    await expectLeftAlone(vllm);
  });

  it('during the write of vLLM to it', async () => {
    const request = await kvpeer.open({ remote_kv_source: vllm.named('target') });
    expect((await kvpeer.lookup(request, range(0, MANY - 1))).hits).toHaveLength(MANY);
    const loading = kvpeer.load(request, range(0, MANY - 1)).catch(() => undefined);
    await new Promise((resolve) => setTimeout(resolve, 20));
    await kvpeer.destroy();
    await loading;
    await expectLeftAlone(vllm);
    const next = await Kvpeer.start(OPTIONS);
    try {
      const { load } = await next.pull({ remote_kv_source: vllm.named('next') }, range(0, 63));
      expect(load).toMatchObject({ pulledCount: 64, bad: [] });
    } finally {
      await next.destroy();
    }
  });
});
