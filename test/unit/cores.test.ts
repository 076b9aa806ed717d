// The number of shards: from the affinity mask and the cgroup's limit, whichever allows fewer cores.

import { expect, it } from 'vitest';
import { cgroupCores, shardCountFor, usableCores } from '../../src/main/options/cores.js';

const reader = (files: Readonly<Record<string, string>>) => (path: string) =>
  Object.hasOwn(files, path) ? files[path] : undefined;

it('leaves one core to the event loop, within 2 to 4 shards', () => {
  expect([1, 2, 3, 4, 5, 6, 96].map(shardCountFor)).toEqual([2, 2, 2, 3, 4, 4, 4]);
});

it('takes the lowest cpu limit on the way up in a cgroup of version 2', () => {
  const read = reader({
    '/proc/self/cgroup': '0::/pods/one\n',
    '/sys/fs/cgroup/pods/one/cpu.max': 'max 100000\n',
    '/sys/fs/cgroup/pods/cpu.max': '350000 100000\n',
  });
  expect(cgroupCores(read)).toBe(3.5);
  expect(usableCores(read, 64)).toBe(3);
  expect(usableCores(read, 2)).toBe(2);
});

it('finds the limit at the mount when the path is not visible, as in a container', () => {
  const read = reader({ '/proc/self/cgroup': '0::/../outside\n', '/sys/fs/cgroup/cpu.max': '200000 100000' });
  expect(cgroupCores(read)).toBe(2);
});

it('reads the quota of a cgroup of version 1', () => {
  const read = reader({
    '/proc/self/cgroup': '5:cpuset:/\n4:cpu,cpuacct:/docker/x\n0::/\n',
    '/sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us': '50000\n',
    '/sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us': '100000\n',
  });
  expect(cgroupCores(read)).toBe(0.5);
  expect(usableCores(read, 8)).toBe(1);
});

it('knows no limit where there is none', () => {
  expect(cgroupCores(reader({}))).toBe(Infinity);
  const read = reader({
    '/proc/self/cgroup': '1:cpu:/\n0::/\n',
    '/sys/fs/cgroup/cpu/cpu.cfs_quota_us': '-1',
    '/sys/fs/cgroup/cpu/cpu.cfs_period_us': '100000',
    '/sys/fs/cgroup/cpu.max': 'max 100000',
  });
  expect(cgroupCores(read)).toBe(Infinity);
  expect(usableCores(read, 6)).toBe(6);
});
