// All benchmarks, in the order in which they run.

import { blockBytesBench } from './block-bytes.js';
import { evictionBench } from './eviction.js';
import { lookupCpuBench } from './lookup-cpu.js';
import { lookupSplitBench } from './lookup-split.js';
import { matchBench } from './match.js';
import type { Section } from './rows.js';

export const SECTIONS: readonly Section[] = [
  matchBench,
  blockBytesBench,
  lookupSplitBench,
  lookupCpuBench,
  evictionBench,
];
