// Who may be a peer of whom: mismatches, fingerprints, simultaneous dialling, restarts, many peers.

import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import { configFingerprint, type FingerprintDescription } from '../../src/main/hashes/index.js';
import type { PeerOptions } from '../../src/main/options.js';
import { eventually, isQuiet, Kvpeer, range } from './support/kvpeer.js';
import { freePort } from '../helpers/free-port.js';
import { VllmPeer } from './support/vllm-peer.js';

/** No bytes matter: vLLM takes any metadata, and no thread of NIXL spins. */
const CONTROL_ONLY = ['--data', 'done', '--blocks', '256', '--block-bytes', '4096', '--log-level', 'info'];
/** What the harness says of its model and layout, as a description of ours. */
const HARNESS: FingerprintDescription = {
  model: 'conformance/model',
  dtype: 'bfloat16',
  tokensPerHash: 16,
  parallelAgnostic: true,
  groups: [{ tokensPerBlock: 16, layers: ['layers.0.attn'] }],
};

describe('a handshake between kvpeer and vLLM', () => {
  let vllm: VllmPeer;

  beforeAll(async () => {
    vllm = await VllmPeer.start({ args: [...CONTROL_ONLY, '--count', '16'] });
  });

  afterAll(async () => {
    await vllm.destroy();
  });

  async function withKvpeer(options: PeerOptions, body: (kvpeer: Kvpeer) => Promise<void>): Promise<void> {
    const kvpeer = await Kvpeer.start({ dataPlane: 'none', ...options });
    try {
      await body(kvpeer);
    } finally {
      await kvpeer.destroy();
    }
  }

  const MISMATCHES = [
    { field: 'block_len', options: { blockBytes: 8192 }, ours: '8192', theirs: '4096' },
    { field: 'hash_seed', options: { hashSeed: '7' }, ours: '7', theirs: 'vllm-none-hash' },
    {
      field: 'config_fingerprint',
      options: { fingerprint: '0123456789abcdef' },
      ours: '0123456789abcdef',
      theirs: configFingerprint(HARNESS),
    },
  ] as const;

  describe.each(MISMATCHES)('with another $field', ({ field, options, ours, theirs }) => {
    it('is refused on both sides within a second, with one log line and one counter that name both values', async () => {
      await withKvpeer(options, async (kvpeer) => {
        const startedAt = performance.now();
        const connection = await kvpeer.connect(vllm.address);
        expect(connection).toEqual({ isReady: false, reason: 'mismatch' });
        await eventually(
          () => vllm.stats(),
          ({ sessions }) => !(kvpeer.address in sessions),
        );
        expect(performance.now() - startedAt).toBeLessThan(1_000);
        const lines = kvpeer.log.filter(({ level }) => level === 'warn');
        expect(lines).toEqual([expect.objectContaining({ peer: vllm.address, field, ours, theirs })]);
        expect((await kvpeer.rejections()).get(`mismatch_${field}`)).toBe(1);
        const labels = `{field="${field}",ours="${ours}",theirs="${theirs}"}`;
        expect((await kvpeer.metrics()).get(`kvpeer_handshake_mismatches_total${labels}`)).toBe(1);
      });
    });

    it('is refused when vLLM dials: its request goes on without us', async () => {
      await withKvpeer(options, async (kvpeer) => {
        const pull = await vllm.pull({ remote: kvpeer.address, keys: '100-103' });
        expect(pull).toMatchObject({ loaded: 0, bad: [] });
        expect(pull.totalMs).toBeLessThan(1_000);
        expect((await kvpeer.rejections()).get(`mismatch_${field}`)).toBe(1);
        const lines = kvpeer.log.filter(({ level }) => level === 'warn');
        expect(lines).toEqual([expect.objectContaining({ peer: vllm.address, field, ours, theirs })]);
      });
    });
  });

  it('takes an empty fingerprint, and one computed from a description', async () => {
    expect(configFingerprint(HARNESS)).toBe(vllm.ready('config_fingerprint'));
    for (const options of [{ fingerprint: '' }, { fingerprintFrom: HARNESS }]) {
      await withKvpeer(options, async (kvpeer) => {
        expect(await kvpeer.connect(vllm.address)).toEqual({ isReady: true });
      });
    }
  });

  it('teaches a kvpeer that trusts its first peer the fingerprint, which others must then have', async () => {
    const other = await VllmPeer.start({ args: [...CONTROL_ONLY, '--model', 'conformance/other'] });
    try {
      await withKvpeer({ fingerprint: 'trust-first' }, async (kvpeer) => {
        expect(await kvpeer.connect(vllm.address)).toEqual({ isReady: true });
        expect(await kvpeer.connect(other.address)).toEqual({ isReady: false, reason: 'mismatch' });
        expect((await kvpeer.rejections()).get('mismatch_config_fingerprint')).toBe(1);
      });
    } finally {
      await other.destroy();
    }
  });

  it('comes about once when both dial at the same moment', async () => {
    for (let attempt = 0; attempt < 5; attempt++) {
      await withKvpeer({}, async (kvpeer) => {
        await kvpeer.store(range(100, 107));
        const connecting = kvpeer.connect(vllm.address);
        vllm.beginPull({ remote: kvpeer.address, keys: '100-107' });
        expect(await connecting).toEqual({ isReady: true });
        const request = await kvpeer.open({ remote_kv_source: vllm.named('both') });
        expect((await kvpeer.lookup(request, range(0, 15))).hits).toHaveLength(16);
        expect((await vllm.stats()).sessions[kvpeer.address]).toMatchObject({ ready: true });
        expect((await kvpeer.levels()).sessions).toBe(1);
      });
    }
  });
});

describe('a restarted peer', () => {
  const BLOCKS = ['--blocks', '512', '--block-bytes', '4096', '--count', '64'];

  it('kvpeer at the same address is served again, and serves again', async () => {
    const vllm = await VllmPeer.start({ args: BLOCKS });
    const port = await freePort();
    try {
      for (let run = 0; run < 3; run++) {
        const kvpeer = await Kvpeer.start({ port });
        try {
          const { load } = await kvpeer.pull({ remote_kv_source: vllm.named(`run-${run}`) }, range(0, 63));
          expect(load).toMatchObject({ pulledCount: 64, bad: [] });
          const [first, last] = [100 + run * 16, 115 + run * 16];
          await kvpeer.store(range(first, last));
          const pull = await vllm.pull({ remote: kvpeer.address, keys: `${first}-${last}` });
          expect(pull).toMatchObject({ loaded: 16, missing: [], bad: [] });
        } finally {
          await kvpeer.destroy();
        }
      }
    } finally {
      await vllm.destroy();
    }
  });

  it('vLLM at the same address is served again, and serves again', async () => {
    const kvpeer = await Kvpeer.start();
    const port = await freePort();
    try {
      await kvpeer.store(range(100, 131));
      for (let run = 0; run < 3; run++) {
        const vllm = await VllmPeer.start({ args: BLOCKS, port });
        try {
          await kvpeer.evict(range(0, 63));
          const { load } = await kvpeer.pull({ remote_kv_source: vllm.named(`run-${run}`) }, range(0, 63));
          expect(load).toMatchObject({ pulledCount: 64, bad: [] });
          const pull = await vllm.pull({ remote: kvpeer.address, keys: '100-131' });
          expect(pull).toMatchObject({ loaded: 32, missing: [], bad: [] });
        } finally {
          await vllm.destroy();
        }
      }
      await eventually(
        () => kvpeer.levels(),
        (levels) => isQuiet(levels) && levels.sessions === 0 && levels.nixlPeers === 0,
      );
    } finally {
      await kvpeer.destroy();
    }
  });
});

describe('eight vLLM peers at once', () => {
  it('are all served by one kvpeer, bytes right', async () => {
    const kvpeer = await Kvpeer.start();
    await kvpeer.store(range(0, 127));
    const peers = await Promise.all(
      Array.from({ length: 8 }, () => VllmPeer.start({ args: ['--blocks', '256', '--block-bytes', '4096'] })),
    );
    try {
      const pulls = await Promise.all(
        peers.map((vllm) => vllm.pull({ remote: kvpeer.address, keys: '0-127' })),
      );
      for (const pull of pulls) expect(pull).toMatchObject({ loaded: 128, missing: [], bad: [] });
      const { sessions, nixlPeers } = await kvpeer.levels();
      expect({ sessions, nixlPeers }).toEqual({ sessions: 8, nixlPeers: 8 });
    } finally {
      await Promise.all(peers.map((vllm) => vllm.destroy()));
    }
    await eventually(
      () => kvpeer.levels(),
      (levels) => isQuiet(levels) && levels.sessions === 0 && levels.nixlPeers === 0,
    );
    await kvpeer.destroy();
  });
});
