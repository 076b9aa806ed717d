// All benchmarks, in the order in which they run.

import { blockBytesBench } from './block-bytes.js';
import { lookupCpuBench } from './lookup-cpu.js';
import { matchBench } from './match.js';
import type { Section } from './rows.js';

export const SECTIONS: readonly Section[] = [matchBench, blockBytesBench, lookupCpuBench];
