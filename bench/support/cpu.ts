// CPU time of this process, read by the process itself.

import { loadNative } from '../../native/index.js';

export interface CpuTimes {
  /** Of the calling (main) thread, ns. */
  readonly mainNs: number;
  /** Of all threads, us. */
  readonly processUs: number;
  readonly atMs: number;
}

export function cpuTimes(): CpuTimes {
  const { user, system } = process.cpuUsage();
  return { mainNs: loadNative().threadCpuNs(), processUs: user + system, atMs: performance.now() };
}

/** Percent of one core between two readings. */
export function cpuPercent(before: CpuTimes, after: CpuTimes): number {
  return (100 * (after.processUs - before.processUs)) / ((after.atMs - before.atMs) * 1000);
}
