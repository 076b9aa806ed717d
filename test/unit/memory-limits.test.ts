// A node that cannot get its memory says how much is missing, where the bound is, and what helps.

import { describe, expect, it } from 'vitest';
import { checkMemory, memoryBound, type MemorySources } from '../../src/main/shards/memory-limits.js';
import { KvpeerError } from '../../src/main/errors.js';

const MiB = 2 ** 20;

function host(files: Record<string, string>, free: Record<string, number> = {}): MemorySources {
  return {
    readText: (path) => files[path],
    freeFileSystemBytes: (path) => free[path],
  };
}

const meminfo = (mib: number): Record<string, string> => ({
  '/proc/meminfo': `MemTotal: 99999999 kB\nMemAvailable:   ${mib * 1024} kB\n`,
});

describe('the memory bound', () => {
  it('is what the host has available when there is no cgroup', () => {
    expect(memoryBound(host(meminfo(100)))).toEqual({ bytes: 100 * MiB, path: '/proc/meminfo' });
    expect(memoryBound(host({}))).toBeUndefined();
  });

  it('is the tightest cgroup of version 2 on the way to the root, droppable cache counted as free', () => {
    const files = {
      ...meminfo(1000),
      '/proc/self/cgroup': '0::/a/b\n',
      '/sys/fs/cgroup/a/b/memory.max': 'max\n',
      '/sys/fs/cgroup/a/b/memory.current': '5\n',
      '/sys/fs/cgroup/a/memory.max': `${64 * MiB}\n`,
      '/sys/fs/cgroup/a/memory.current': `${60 * MiB}\n`,
      '/sys/fs/cgroup/a/memory.stat': `anon 1\ninactive_file ${10 * MiB}\n`,
    };
    expect(memoryBound(host(files))).toEqual({ bytes: 14 * MiB, path: '/sys/fs/cgroup/a/memory.max' });
  });

  it('knows cgroup version 1, its number for no limit, and a path that is not mounted in a container', () => {
    const files = {
      ...meminfo(1000),
      '/proc/self/cgroup': '5:cpu:/x\n9:memory:/docker/abc\n',
      '/sys/fs/cgroup/memory/memory.limit_in_bytes': `${32 * MiB}\n`,
      '/sys/fs/cgroup/memory/memory.usage_in_bytes': `${8 * MiB}\n`,
      '/sys/fs/cgroup/memory/memory.stat': `inactive_file 5\ntotal_inactive_file ${MiB}\n`,
    };
    expect(memoryBound(host(files))?.bytes).toBe(25 * MiB);
    const unlimited = { ...files, '/sys/fs/cgroup/memory/memory.limit_in_bytes': '9223372036854771712\n' };
    expect(memoryBound(host(unlimited))?.path).toBe('/proc/meminfo');
  });
});

describe('the memory check', () => {
  const errorOf = (run: () => void): KvpeerError => {
    try {
      run();
    } catch (error) {
      if (error instanceof KvpeerError) return error;
    }
    throw new Error('no KvpeerError');
  };

  it('names size, bound and remedy when the memory is not there', () => {
    const error = errorOf(() => {
      checkMemory(200 * MiB, 190 * MiB, undefined, host(meminfo(100)));
    });
    expect(error.code).toBe('KVPEER_MEMORY');
    expect(error.message).toContain('200 MiB');
    expect(error.message).toContain('/proc/meminfo leaves 100 MiB');
    expect(error.message).toContain('--pool-bytes');
  });

  it('checks the space of the file system when the pool is a file', () => {
    const sources = host(meminfo(1000), { '/dev/shm': 64 * MiB });
    expect(() => {
      checkMemory(60 * MiB, 50 * MiB, '/dev/shm', sources);
    }).not.toThrow();
    expect(
      errorOf(() => {
        checkMemory(110 * MiB, 100 * MiB, '/dev/shm', sources);
      }).message,
    ).toContain('/dev/shm has 64 MiB free');
    expect(
      errorOf(() => {
        checkMemory(110 * MiB, 100 * MiB, '/nowhere', sources);
      }).message,
    ).toContain('/nowhere');
  });
});
