// What do kvpeer's mappings bring over a plain SharedArrayBuffer, and the index over a Map?

import { loadNative } from '../native/index.js';
import type { Section } from './rows.js';
import { KEY_BYTES, benchKeys, shuffled } from './support/keys.js';

const BLOCK_BYTES = 65_536;
const BLOCKS = 1024;

/** GB/s of copying every block of one half to a place in the other, by Buffer.copy. */
function copyRate(memory: Buffer, places: Int32Array): number {
  const startMs = performance.now();
  const half = BLOCKS * BLOCK_BYTES;
  for (let i = 0; i < BLOCKS; i++) {
    memory.copy(memory, half + places[i] * BLOCK_BYTES, i * BLOCK_BYTES, (i + 1) * BLOCK_BYTES);
  }
  return half / 1e6 / (performance.now() - startMs);
}

export const memoryBench: Section = {
  group: 'parts',
  title: 'mappings against plain shared memory, Maps',
  goals: [],
  prefixes: ['memory.', 'map.'],
  run({ isQuick, rows }) {
    const rounds = isQuick ? 5 : 11;
    const bytes = 2 * BLOCKS * BLOCK_BYTES;
    const { buffer } = loadNative().mapAnonymous({ bytes, huge: true, lock: false });
    const mapped = Buffer.from(buffer, 0, bytes).fill(1);
    const plain = Buffer.from(new SharedArrayBuffer(bytes)).fill(1);
    const places = shuffled(3, BLOCKS, BLOCKS);
    const mappedRates: number[] = [];
    const plainRates: number[] = [];
    for (let round = 0; round < rounds; round++) {
      mappedRates.push(copyRate(mapped, places));
      plainRates.push(copyRate(plain, places));
    }
    rows.measured('memory.mapping.copyGbPerS', mappedRates, 'GB/s');
    rows.measured('memory.plain.copyGbPerS', plainRates, 'GB/s');

    const count = 65_536;
    const slots = new Map<string, number>();
    for (let slot = 0; slot < count; slot++) slots.set(benchKeys(slot, 1).toString('hex'), slot);
    const asked = shuffled(5, 1024, count);
    const keys = Array.from(asked, (number) => benchKeys(number, 1));
    const hexNs = Array.from({ length: rounds }, () => {
      const start = loadNative().threadCpuNs();
      let found = 0;
      for (const key of keys) if (slots.has(key.toString('hex', 0, KEY_BYTES))) found += 1;
      if (found !== keys.length) throw new Error('a key is missing');
      return (loadNative().threadCpuNs() - start) / keys.length;
    });
    rows.measured('map.64k.hexNs', hexNs, 'ns/key');
  },
};
