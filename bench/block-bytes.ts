// How fast are fills, checks and copies of block bytes on one thread, by its CPU time?

import { loadNative } from '../native/index.js';
import { computeLayout } from '../src/shared/layout.js';
import { writeHeader } from '../src/shared/layout-header.js';
import { EXTENT_HEADER_BYTES, ExtentWord, PositionStatus } from '../src/shared/operations.js';
import type { RowBook, Section } from './rows.js';

const BLOCK_BYTES = 65_536;
const BLOCKS = 2048;

function run(isQuick: boolean, rows: RowBook): void {
  const native = loadNative();
  const layout = computeLayout({ numBlocks: BLOCKS, blockBytes: BLOCK_BYTES, keyBytes: 36, shardCount: 1 });
  const map = (bytes: number): SharedArrayBuffer =>
    native.mapAnonymous({ bytes, huge: true, lock: false }).buffer;
  const control = map(layout.controlBytes);
  writeHeader(control, layout, { seed: 1n, incarnation: 1n });
  const controlHandle = native.attachControl(control);
  const pool = native.attachPool(map(layout.poolBytes), controlHandle);

  const extent = layout.arenaOffset;
  const words = new Int32Array(control, extent, EXTENT_HEADER_BYTES / 4);
  words[ExtentWord.Count] = BLOCKS;
  words[ExtentWord.SlotsOffset] = EXTENT_HEADER_BYTES;
  words[ExtentWord.GenerationsOffset] = EXTENT_HEADER_BYTES + 4 * BLOCKS;
  words[ExtentWord.StatusesOffset] = EXTENT_HEADER_BYTES + 6 * BLOCKS;
  words[ExtentWord.Bytes] = EXTENT_HEADER_BYTES + 8 * BLOCKS;
  new Int32Array(control, extent + EXTENT_HEADER_BYTES, BLOCKS).forEach((_, slot, slots) => {
    slots[slot] = slot;
  });
  const statuses = new Uint8Array(control, extent + EXTENT_HEADER_BYTES + 6 * BLOCKS, BLOCKS);
  const source = new Uint8Array(BLOCKS * BLOCK_BYTES).fill(1);
  const token = native.holdBuffer(source);

  const rounds = isQuick ? 3 : 15;
  const rateOf = (name: string, status: number, work: () => void): void => {
    statuses.fill(status);
    work();
    const samples = Array.from({ length: rounds }, () => {
      const start = native.threadCpuNs();
      work();
      return (BLOCKS * BLOCK_BYTES) / (native.threadCpuNs() - start);
    });
    rows.measured(name, samples, 'GB/s');
  };
  const { Reserved, Pinned } = PositionStatus;
  rateOf('bytes.copyInGbPerS', Reserved, () => native.copyIn(controlHandle, pool, extent, 0, -1, token));
  rateOf('bytes.fillGbPerS', Reserved, () => native.fillFromKey(controlHandle, pool, extent, 0, -1));
  rateOf('bytes.verifyGbPerS', Pinned, () => native.verifyFromKey(controlHandle, pool, extent, 0, -1));
  rateOf('bytes.checksumGbPerS', Reserved, () => native.checksum(controlHandle, pool, extent, 0, -1));
  rateOf('bytes.poisonGbPerS', Reserved, () => native.poison(controlHandle, pool, extent, 0, -1));
  native.dropBuffer(token);
}

/** `npm run bench -- --only bytes` */
export const blockBytesBench: Section = {
  group: 'parts',
  title: 'fills, checks and copies of block bytes',
  goals: [],
  prefixes: ['bytes.'],
  run({ isQuick, rows }) {
    run(isQuick, rows);
  },
};
