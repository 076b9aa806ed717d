// How much memory this process can still get: free memory of the host, the cgroup's limit, the space of a tmpfs.

import { readFileSync, statfsSync } from 'node:fs';
import { KvpeerError } from '../errors.js';

/** Where the figures come from; injected so that tests can play any host. */
export interface MemorySources {
  /** The text of a file, or undefined when it cannot be read. */
  readText(path: string): string | undefined;
  /** Bytes that can still be written below a directory, or undefined when it is no usable file system. */
  freeFileSystemBytes(path: string): number | undefined;
}

/** The real host. */
export const hostMemory: MemorySources = {
  readText(path) {
    try {
      return readFileSync(path, 'utf8');
    } catch {
      return undefined;
    }
  },
  freeFileSystemBytes(path) {
    try {
      const stats = statfsSync(path);
      return stats.bavail * stats.bsize;
    } catch {
      return undefined;
    }
  },
};

/** A bound on the memory that can be had, and the file that says so. */
export interface MemoryBound {
  readonly bytes: number;
  readonly path: string;
}

/**
 * The tightest bound of the host's MemAvailable and of the memory cgroups (version 2, then 1) from this process's own
 * up to the root that it can see. Page cache that the kernel can drop counts as free. Undefined when nothing is known.
 */
export function memoryBound(sources: MemorySources): MemoryBound | undefined {
  const bounds: MemoryBound[] = [];
  const available = /^MemAvailable:\s+(\d+) kB/m.exec(sources.readText('/proc/meminfo') ?? '');
  if (available !== null) bounds.push({ bytes: Number(available[1]) * 1024, path: '/proc/meminfo' });
  for (const line of (sources.readText('/proc/self/cgroup') ?? '').split('\n')) {
    const [id, controllers, path] = splitCgroupLine(line);
    if (path === undefined) continue;
    if (id === '0' && controllers === '') {
      bounds.push(...cgroupBounds(sources, '/sys/fs/cgroup', path, VERSION_2));
    } else if (controllers?.split(',').includes('memory') === true) {
      bounds.push(...cgroupBounds(sources, '/sys/fs/cgroup/memory', path, VERSION_1));
    }
  }
  return bounds.reduce<MemoryBound | undefined>(
    (least, bound) => (least === undefined || bound.bytes < least.bytes ? bound : least),
    undefined,
  );
}

/**
 * Throws unless `bytes` more of memory can be had.
 *
 * @param sharedDirectory of the file the pool is mapped from, when it is: its free space is a bound too
 * @throws KVPEER_MEMORY with the size, the path of the bound and the remedy
 */
export function checkMemory(
  bytes: number,
  poolBytes: number,
  sharedDirectory: string | undefined,
  sources: MemorySources = hostMemory,
): void {
  const bound = memoryBound(sources);
  if (bound !== undefined && bytes > bound.bytes) {
    throw new KvpeerError(
      'KVPEER_MEMORY',
      `the node needs ${inMiB(bytes)} of memory and ${bound.path} leaves ${inMiB(bound.bytes)}; ` +
        'lower --pool-bytes, free memory or raise the limit',
    );
  }
  if (sharedDirectory === undefined) return;
  const free = sources.freeFileSystemBytes(sharedDirectory);
  if (free === undefined) {
    throw new KvpeerError(
      'KVPEER_MEMORY',
      `${sharedDirectory} cannot be used for the pool's file of ${inMiB(poolBytes)}; ` +
        'mount a tmpfs there or use private memory',
    );
  }
  if (poolBytes > free) {
    throw new KvpeerError(
      'KVPEER_MEMORY',
      `the pool needs ${inMiB(poolBytes)} and ${sharedDirectory} has ${inMiB(free)} free; ` +
        'lower --pool-bytes, enlarge the tmpfs (in a container: --shm-size) or use private memory',
    );
  }
}

interface CgroupFiles {
  readonly limit: string;
  readonly usage: string;
  readonly droppable: RegExp;
}

const VERSION_2: CgroupFiles = {
  limit: 'memory.max',
  usage: 'memory.current',
  droppable: /^inactive_file (\d+)/m,
};
const VERSION_1: CgroupFiles = {
  limit: 'memory.limit_in_bytes',
  usage: 'memory.usage_in_bytes',
  droppable: /^total_inactive_file (\d+)/m,
};

/** `hierarchy:controllers:path`; the path may hold colons. */
function splitCgroupLine(line: string): [string?, string?, string?] {
  const parts = line.split(':');
  if (parts.length < 3) return [];
  return [parts[0], parts[1], parts.slice(2).join(':')];
}

/** In a container the path may name a group outside of what is mounted: only the root is there then. */
function cgroupBounds(sources: MemorySources, root: string, path: string, files: CgroupFiles): MemoryBound[] {
  const bounds: MemoryBound[] = [];
  const names = path.split('/').filter((name) => name !== '' && name !== '..');
  for (let depth = names.length; depth >= 0; depth -= 1) {
    const directory = [root, ...names.slice(0, depth)].join('/');
    const limit = Number(sources.readText(`${directory}/${files.limit}`)?.trim() ?? NaN);
    const usage = Number(sources.readText(`${directory}/${files.usage}`)?.trim() ?? NaN);
    // "max" is NaN; version 1 says "no limit" with a number near 2^63.
    if (!Number.isFinite(limit) || !Number.isFinite(usage) || limit >= 2 ** 62) continue;
    const stat = sources.readText(`${directory}/memory.stat`) ?? '';
    const droppable = Number(files.droppable.exec(stat)?.[1] ?? 0);
    bounds.push({
      bytes: Math.max(0, limit - usage + droppable),
      path: `${directory}/${files.limit}`,
    });
  }
  return bounds;
}

function inMiB(bytes: number): string {
  return `${Math.ceil(bytes / 2 ** 20)} MiB`;
}
