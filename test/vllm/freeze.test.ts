// A vLLM consumer that is frozen in the middle of our write for 45 s and continued (design.md section 6, rule 9).
//
// UCX_TLS=tcp,self on both sides: a same-host copy would be made although the target is stopped. Waits for real time,
// 45 s, as the rule is about vLLM's own clocks; both variants run side by side.

import { open } from 'node:fs/promises';
import { describe, expect, it } from 'vitest';

import { eventually, Kvpeer, range } from './support/kvpeer.js';
import { VllmPeer } from './support/vllm-peer.js';

const BLOCK_BYTES = 65_536;
const COUNT = 2048;
const PAGE_BYTES = 4096;
const NEW_BYTE = 0xee;
const FROZEN_MS = 45_000;
const TCP = { env: { UCX_TLS: 'tcp,self' } };
const MIB = 2 ** 20;

/** Pages of vLLM's CPU tier with bytes that kvpeer sent before its stop, and with those that its slots had after it. */
interface Arrived {
  readonly oldPages: number;
  readonly newPages: number;
}

async function arrivedAt(vllm: VllmPeer): Promise<Arrived> {
  const memory = await open(`/proc/${vllm.pid}/mem`, 'r');
  try {
    let oldPages = 0;
    let newPages = 0;
    const zeros = Buffer.alloc(PAGE_BYTES);
    const fresh = Buffer.alloc(PAGE_BYTES, NEW_BYTE);
    const chunk = Buffer.alloc(4 * MIB);
    const base = Number(vllm.ready('base_addr'));
    for (let at = 0; at < COUNT * BLOCK_BYTES; at += chunk.length) {
      await memory.read(chunk, 0, chunk.length, base + at);
      for (let page = 0; page < chunk.length; page += PAGE_BYTES) {
        const bytes = chunk.subarray(page, page + PAGE_BYTES);
        if (bytes.equals(zeros)) continue;
        // One byte of the new content anywhere in a page would be one too many: both are told apart by their last byte.
        if (bytes.equals(fresh) || bytes.includes(fresh.subarray(0, 64))) newPages++;
        else oldPages++;
      }
    }
    return { oldPages, newPages };
  } finally {
    await memory.close();
  }
}

/** @param times our clocks: what decides when the write is stopped */
async function freeze(times: object, stopWithinMs: number): Promise<void> {
  const [vllm, kvpeer] = await Promise.all([
    VllmPeer.start({ args: ['--blocks', String(COUNT), '--block-bytes', String(BLOCK_BYTES)], ...TCP }),
    Kvpeer.start({
      ...TCP,
      ...times,
      blockBytes: BLOCK_BYTES,
      poolBytes: (2 * COUNT + 512) * BLOCK_BYTES,
      peerPinShare: 1,
      allPeersPinShare: 1,
    }),
  ]);
  try {
    const indexes = range(0, COUNT - 1);
    await kvpeer.store(indexes);
    const frozen = kvpeer.stopWhenServing(vllm.pid);
    vllm.beginPull({ remote: kvpeer.address, keys: `0-${COUNT - 1}` });
    await frozen;
    const frozenAt = performance.now();
    expect((await kvpeer.levels()).pins).toBe(COUNT);
    await eventually(
      () => kvpeer.levels(),
      ({ pins }) => pins === 0,
      stopWithinMs,
    );
    expect(await kvpeer.overwrite(indexes, NEW_BYTE)).toBe(COUNT);
    const before = await arrivedAt(vllm);
    expect(before.oldPages).toBeLessThan((COUNT * BLOCK_BYTES) / PAGE_BYTES);
    await new Promise((resolve) => setTimeout(resolve, FROZEN_MS - (performance.now() - frozenAt)));
    vllm.kill('SIGCONT');
    // It works again when it answers; what its kernel held has been read by then and two seconds after.
    await vllm.stats();
    await new Promise((resolve) => setTimeout(resolve, 2_000));
    const after = await arrivedAt(vllm);
    expect(after.newPages).toBe(0);
    expect((after.oldPages - before.oldPages) * PAGE_BYTES).toBeLessThanOrEqual(16 * MIB);
    expect((await kvpeer.metrics()).get('kvpeer_hard_stops_total')).toBeGreaterThan(0);
  } finally {
    await Promise.all([vllm.destroy(), kvpeer.destroy()]);
  }
}

describe.concurrent('a vLLM consumer frozen in the middle of our write for 45 s', () => {
  it(
    'gets none of the bytes that its source slots are refilled with after our stop',
    { timeout: 120_000 },
    async () => {
      await freeze({}, 40_000);
    },
  );

  it('nor when its session is cut at second 5', { timeout: 120_000 }, async () => {
    await freeze({ heartbeatMs: 1_000, heartbeatTimeoutMs: 4_000 }, 12_000);
  });
});
