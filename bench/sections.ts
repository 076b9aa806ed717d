// All benchmarks, in the order in which they run.

import { blockBytesBench } from './block-bytes.js';
import { evictionBench } from './eviction.js';
import { idleBench } from './idle.js';
import { kvEventsBench } from './kv-events.js';
import { lookupCpuBench } from './lookup-cpu.js';
import { lookupLoadBench } from './lookup-load.js';
import { lookupRoundTripBench } from './lookup-round-trip.js';
import { lookupSplitBench } from './lookup-split.js';
import { lookupTailBench } from './lookup-tail.js';
import { dataCompletionBench } from './ext-data-completion.js';
import { packedKeysBench } from './ext-packed-keys.js';
import { partialFetchBench } from './ext-partial-fetch.js';
import { speculativeFetchBench } from './ext-speculative-fetch.js';
import { matchBench } from './match.js';
import { codecBench } from './parts-codec.js';
import { memoryBench } from './parts-memory.js';
import { ringsBench } from './parts-rings.js';
import { peersBench } from './peers.js';
import type { Section } from './rows.js';
import { serveBench } from './serve.js';
import { sidecarBench } from './sidecar.js';
import { serveSplitBench } from './serve-split.js';
import { vllmBench } from './peers-vllm.js';

export const SECTIONS: readonly Section[] = [
  matchBench,
  blockBytesBench,
  memoryBench,
  codecBench,
  ringsBench,
  kvEventsBench,
  lookupSplitBench,
  lookupCpuBench,
  lookupRoundTripBench,
  lookupLoadBench,
  lookupTailBench,
  packedKeysBench,
  dataCompletionBench,
  partialFetchBench,
  speculativeFetchBench,
  serveSplitBench,
  serveBench,
  idleBench,
  evictionBench,
  sidecarBench,
  peersBench,
  vllmBench,
];
