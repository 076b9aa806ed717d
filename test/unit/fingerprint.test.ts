// config_fingerprint against vLLM's own values, and where a node takes its fingerprint from.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';

import type { FingerprintDescription } from '../../src/main/hashes/index.js';
import { configFingerprint } from '../../src/main/hashes/index.js';
import { resolveOptions, validateOptions } from '../../src/main/options.js';

const LLAMA: FingerprintDescription = {
  model: 'meta-llama/Llama-3.1-8B',
  dtype: 'bfloat16',
  tokensPerHash: 16,
  parallelAgnostic: true,
  groups: [{ tokensPerBlock: 16, layers: { pattern: 'model.layers.{}.self_attn.attn', count: 2 } }],
};

const folder = mkdtempSync(join(tmpdir(), 'kvpeer-fingerprint-'));
afterAll(() => {
  rmSync(folder, { recursive: true });
});

describe('config_fingerprint', () => {
  it('of one full-attention group is the one vLLM computes', () => {
    expect(configFingerprint(LLAMA)).toBe('577885e0a87bc063');
  });

  it('covers the parallel sizes when the layout depends on them, and only then', () => {
    expect(configFingerprint({ ...LLAMA, parallelAgnostic: false, tensorParallel: 2 })).toBe(
      '1ad9579257336c62',
    );
    expect(configFingerprint({ ...LLAMA, tensorParallel: 2 })).toBe('577885e0a87bc063');
  });

  it('escapes what is not ASCII as Python does', () => {
    expect(configFingerprint({ ...LLAMA, model: 'modèle/测试' })).toBe('e9e72448269d07ec');
  });

  it('takes layer names one by one as well as by pattern', () => {
    const layers = ['model.layers.0.self_attn.attn', 'model.layers.1.self_attn.attn'];
    expect(configFingerprint({ ...LLAMA, groups: [{ tokensPerBlock: 16, layers }] })).toBe(
      '577885e0a87bc063',
    );
  });

  it('differs for another dtype, chunk, format or replicated rows', () => {
    const others = [
      { dtype: 'fp8' },
      { blocksPerChunk: 4 },
      { canonicalFormat: 'v1-hnd' },
      { replicatedLayout: true },
    ].map((change) => configFingerprint({ ...LLAMA, ...change }));
    expect(new Set(['577885e0a87bc063', ...others]).size).toBe(5);
  });
});

describe('the fingerprint of a node', () => {
  it('is taken verbatim, or computed from a description in the YAML file', () => {
    expect(validateOptions({ fingerprint: '0123456789abcdef' }).fingerprint).toBe('0123456789abcdef');
    const { options } = resolveOptions({ yaml: { fingerprintFrom: LLAMA }, yamlFile: 'kvpeer.yaml' });
    expect(options.fingerprint).toBe('577885e0a87bc063');
    expect(validateOptions({ fingerprintFrom: LLAMA }).fingerprint).toBe('577885e0a87bc063');
  });

  it('is computed from a description file that a flag names', () => {
    const file = join(folder, 'llama.yaml');
    writeFileSync(file, JSON.stringify(LLAMA));
    const { options } = resolveOptions({ flags: { fingerprintFrom: file } });
    expect(options.fingerprint).toBe('577885e0a87bc063');
    expect(validateOptions(options).fingerprint).toBe('577885e0a87bc063');
  });

  it('cannot be given twice, and a wrong description is named with its field', () => {
    expect(() => validateOptions({ fingerprint: 'x', fingerprintFrom: LLAMA })).toThrow(/give one of them/);
    const wrong = join(folder, 'wrong.yaml');
    writeFileSync(wrong, 'model: m\ndtype: bfloat16\ntokensPerHash: zero\n');
    expect(() => resolveOptions({ flags: { fingerprintFrom: wrong } })).toThrow(/tokensPerHash/);
    expect(() => resolveOptions({ flags: { fingerprintFrom: join(folder, 'none.yaml') } })).toThrow(
      /cannot be read/,
    );
  });
});
