// The built-in trace: repeatable, in the form of trace files, and with something to reuse.
import { describe, expect, it } from 'vitest';
import { DEFAULT_GENERATED_REQUESTS, generateTrace } from '../../src/main/cli/replay/generator.js';
import { loadTrace } from '../../src/main/cli/replay/load-trace.js';
import { TOKENS_PER_BLOCK, type TraceRecord } from '../../src/main/cli/replay/trace.js';
import { modelReplay } from '../fixtures/replay-model.js';

function take(seed: number, count: number): TraceRecord[] {
  const trace = generateTrace(seed);
  return Array.from({ length: count }, () => trace.next().value);
}

function load(count?: number, skip = 0): ReturnType<typeof loadTrace> {
  const selection = { file: undefined, skip, count, seed: 1, strict: false };
  return loadTrace(selection, () => undefined, new AbortController().signal);
}

describe('the built-in trace', () => {
  it('is the same for the same seed and another for another seed', () => {
    expect(take(5, 200)).toEqual(take(5, 200));
    expect(take(5, 200)).not.toEqual(take(6, 200));
    expect(take(1, 200)).not.toEqual(take(2 ** 32 + 1, 200));
  });

  it('has the form of a trace file: one id per block, times that do not go back', () => {
    let before = 0;
    for (const record of take(1, 500)) {
      expect(record.hashIds).toHaveLength(Math.ceil(record.inputLength / TOKENS_PER_BLOCK));
      expect(new Set(record.hashIds).size).toBe(record.hashIds.length);
      expect(record.timestamp).toBeGreaterThanOrEqual(before);
      before = record.timestamp;
    }
  });

  it('names each prefix by one id: equal ids always follow equal ids', () => {
    const parents = new Map<number, number>();
    for (const { hashIds } of take(1, 1000)) {
      hashIds.forEach((id, index) => {
        const parent = index === 0 ? -1 : hashIds[index - 1];
        expect(parents.get(id) ?? parent).toBe(parent);
        parents.set(id, parent);
      });
    }
  });

  it('gives four peers local hits, blocks to pull and blocks to compute in fair shares', async () => {
    const { requests, distinctBlocks } = await load();
    expect(requests).toHaveLength(DEFAULT_GENERATED_REQUESTS);
    const { referenced, local, pulled, computed } = modelReplay(requests, 4);
    expect(local + pulled + computed).toBe(referenced);
    for (const part of [local, pulled, computed]) expect(part / referenced).toBeGreaterThan(0.1);
    expect(computed).toBe(distinctBlocks);
  });

  it('is skipped into and cut like a file', async () => {
    const all = await load(30);
    const part = await load(10, 20);
    expect(part.requests).toEqual(all.requests.slice(20));
  });
});
