// How many cores this process may use: the affinity mask and the cgroup's cpu limit, whichever is smaller.

import { readFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { posix } from 'node:path';

/** Reads a small file of the kernel; undefined when it cannot be read. */
export type ReadText = (path: string) => string | undefined;

/** Shard workers for so many cores: one core stays with the event loop (design section 2). */
export function shardCountFor(cores: number): number {
  return Math.min(Math.max(cores - 1, 2), 4);
}

/** The cores of this process, at least 1. Node's own count knows the affinity mask only. */
export function usableCores(read: ReadText = readText, affinityCores = availableParallelism()): number {
  return Math.max(1, Math.min(affinityCores, Math.floor(cgroupCores(read))));
}

/** The cpu limit of the cgroup and of every one above it, in cores; Infinity without a limit. */
export function cgroupCores(read: ReadText): number {
  const membership = read('/proc/self/cgroup') ?? '';
  let cores = Infinity;
  for (const [, id, controllers, path] of membership.matchAll(/^(\d+):([^:\n]*):(.*)$/gm)) {
    if (id === '0' && controllers === '') {
      cores = Math.min(
        cores,
        lowest('/sys/fs/cgroup', path, (folder) => limitV2(read, folder)),
      );
    } else if (controllers.split(',').includes('cpu')) {
      for (const mount of ['/sys/fs/cgroup/cpu', '/sys/fs/cgroup/cpu,cpuacct']) {
        cores = Math.min(
          cores,
          lowest(mount, path, (folder) => limitV1(read, folder)),
        );
      }
    }
  }
  return cores;
}

/** The lowest limit from the group up to the mount. In a container the group's own path may not be visible. */
function lowest(mount: string, path: string, limitOf: (folder: string) => number): number {
  let cores = Infinity;
  for (let part = posix.join('/', path); ; part = posix.dirname(part)) {
    cores = Math.min(cores, limitOf(posix.join(mount, part)));
    if (part === '/') return cores;
  }
}

function limitV2(read: ReadText, folder: string): number {
  const [quota, period] = (read(posix.join(folder, 'cpu.max')) ?? '').trim().split(/\s+/);
  return ratio(quota, period);
}

function limitV1(read: ReadText, folder: string): number {
  const quota = read(posix.join(folder, 'cpu.cfs_quota_us'));
  const period = read(posix.join(folder, 'cpu.cfs_period_us'));
  return ratio(quota, period);
}

/** "max", -1 and a missing file all mean that there is no limit. */
function ratio(quota: string | undefined, period: string | undefined): number {
  const cores = Number(quota) / Number(period);
  return Number.isFinite(cores) && cores > 0 ? cores : Infinity;
}

function readText(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return undefined;
  }
}
