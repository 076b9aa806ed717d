// The SSRF allow-list against a real server of the Kubernetes API, and against files on a real disk.

import { writeFileSync } from 'node:fs';
import { mkdir, mkdtemp, rename, rm, symlink, unlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';

import { openAllowList, type AllowList, type AllowListOptions } from '../../src/main/sidecar/allow-list.js';
import { LogLines } from '../helpers/log-lines.js';
import { KubernetesApi } from './support/kubernetes-api.js';

const NONE: AllowListOptions = {
  isProtectionOn: false,
  allow: [],
  allowFile: undefined,
  inferencePool: undefined,
  poolGroup: undefined,
  poolPorts: 'target',
};

let directory: string;
let log: LogLines;
let list: AllowList | undefined;

beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'kvpeer-allow-'));
  log = new LogLines();
});

afterEach(async () => {
  await list?.close();
  list = undefined;
  await rm(directory, { recursive: true });
});

async function open(options: Partial<AllowListOptions>): Promise<AllowList> {
  list = await openAllowList({ ...NONE, ...options }, log.logger);
  return list;
}

/** Looks until it is so: what changes a file or a pod cannot tell when the list has seen it. */
async function until(isSo: () => boolean): Promise<void> {
  await expect.poll(isSo).toBe(true);
}

describe('without protection', () => {
  test('everything is allowed, and the log warns', async () => {
    const off = await open({ inferencePool: 'default/pool' });
    expect(off.enabled).toBe(false);
    expect(off.allows('anything.example', 1)).toBe(true);
    expect(log.messages('warn').join()).toContain('SSRF protection is off');
  });

  test('protection without anything to allow is refused', async () => {
    await expect(open({ isProtectionOn: true })).rejects.toMatchObject({ code: 'KVPEER_INVALID_OPTION' });
  });
});

describe('endpoints of the command line', () => {
  test('each is allowed at its port, in every spelling, and nothing else is', async () => {
    const some = await open({ allow: ['10.0.0.7:8000', 'Node-7.kv.:8000', '[2001:db8:0::1]:8000'] });
    expect(some.enabled).toBe(true);
    const allowed = [
      '10.0.0.7',
      'node-7.KV',
      'node-7.kv.',
      '2001:db8::1',
      '[2001:DB8::1]',
      '2001:0db8::0001',
    ];
    for (const host of allowed) expect([host, some.allows(host, 8000)]).toEqual([host, true]);
    for (const host of ['10.0.0.8', '::ffff:10.0.0.7', 'node-7', '', '10.0.0.7:8000', '167772167']) {
      expect([host, some.allows(host, 8000)]).toEqual([host, false]);
    }
    expect(some.allows('10.0.0.7', 8001)).toBe(false);
  });

  test.each([
    '10.0.0.7',
    '10.0.0.7:',
    '10.0.0.7:0',
    '10.0.0.7:65536',
    ':8000',
    'http://h:80',
    '0.0.0.0:80',
    'a b:1',
    '*:80',
  ])('%j is refused', async (text) => {
    await expect(open({ allow: [text] })).rejects.toMatchObject({ code: 'KVPEER_INVALID_OPTION' });
  });
});

describe('the allow-list file', () => {
  // Edits in place are synchronous: the file is judged when there was no event for a moment, and that is not to be
  // between its truncation and what is written then.
  test('has one endpoint per line, with comments and blank lines', async () => {
    const path = join(directory, 'allow');
    await writeFile(path, '# pods\n10.0.0.1:8000  # the first\r\n\n\t[::1]:8000\n');
    const file = await open({ allowFile: path });
    expect(file.enabled).toBe(true);
    expect(file.allows('10.0.0.1', 8000)).toBe(true);
    expect(file.allows('::1', 8000)).toBe(true);
    expect(file.allows('10.0.0.2', 8000)).toBe(false);
  });

  test('is read again after an edit in place', async () => {
    const path = join(directory, 'allow');
    await writeFile(path, '10.0.0.1:8000\n');
    const file = await open({ allowFile: path });
    writeFileSync(path, '10.0.0.2:8000\n');
    await until(() => file.allows('10.0.0.2', 8000));
    expect(file.allows('10.0.0.1', 8000)).toBe(false);
  });

  test('is read again while another file of its directory changes all the time', async () => {
    const path = join(directory, 'allow');
    await writeFile(path, '10.0.0.1:8000\n');
    const file = await open({ allowFile: path });
    const writing = setInterval(() => {
      writeFileSync(join(directory, 'log'), 'a line\n');
    }, 10);
    try {
      writeFileSync(path, '10.0.0.2:8000\n');
      await expect.poll(() => file.allows('10.0.0.2', 8000), { timeout: 4000 }).toBe(true);
    } finally {
      clearInterval(writing);
    }
  });

  test('is read again after it was replaced by a rename, twice', async () => {
    const path = join(directory, 'allow');
    await writeFile(path, '10.0.0.1:8000\n');
    const file = await open({ allowFile: path });
    for (const host of ['10.0.0.2', '10.0.0.3']) {
      await writeFile(`${path}.new`, `${host}:8000\n`);
      await rename(`${path}.new`, path);
      await until(() => file.allows(host, 8000));
    }
    expect(file.allows('10.0.0.1', 8000)).toBe(false);
  });

  test('is read again when a mounted ConfigMap swaps its ..data link', async () => {
    for (const [version, host] of [
      ['v1', '10.0.0.1'],
      ['v2', '10.0.0.2'],
    ]) {
      await mkdir(join(directory, version));
      await writeFile(join(directory, version, 'allow'), `${host}:8000\n`);
    }
    await symlink('v1', join(directory, '..data'));
    await symlink(join('..data', 'allow'), join(directory, 'allow'));
    const file = await open({ allowFile: join(directory, 'allow') });
    await symlink('v2', join(directory, '..data_tmp'));
    await rename(join(directory, '..data_tmp'), join(directory, '..data'));
    await until(() => file.allows('10.0.0.2', 8000));
    expect(file.allows('10.0.0.1', 8000)).toBe(false);
  });

  test('with a bad line, or gone, leaves the last good list in force and says so', async () => {
    const path = join(directory, 'allow');
    await writeFile(path, '10.0.0.1:8000\n');
    const file = await open({ allowFile: path });
    writeFileSync(path, '10.0.0.2:8000\nnonsense\n');
    await until(() => log.messages('error').length === 1);
    expect(log.lines('error')[0]).toMatchObject({ file: path, endpointCount: 1 });
    expect(JSON.stringify(log.lines('error')[0])).toContain('line 2');
    expect(file.allows('10.0.0.1', 8000)).toBe(true);
    expect(file.allows('10.0.0.2', 8000)).toBe(false);
    await unlink(path);
    await until(() => log.messages('error').length === 2);
    expect(file.allows('10.0.0.1', 8000)).toBe(true);
    writeFileSync(path, '10.0.0.3:8000\n');
    await until(() => file.allows('10.0.0.3', 8000));
  });

  test('that is missing, bad or too long at the start is an error that names it', async () => {
    const missing = join(directory, 'none');
    await expect(open({ allowFile: missing })).rejects.toMatchObject({ code: 'KVPEER_INVALID_OPTION' });
    await writeFile(join(directory, 'bad'), 'nonsense\n');
    await expect(open({ allowFile: join(directory, 'bad') })).rejects.toThrow(/line 1: "nonsense"/);
    await writeFile(join(directory, 'long'), '#'.repeat((1 << 20) + 1));
    await expect(open({ allowFile: join(directory, 'long') })).rejects.toThrow(/longer than/);
  });
});

describe('an InferencePool', () => {
  let api: KubernetesApi;

  beforeEach(async () => {
    api = new KubernetesApi();
    await api.start();
    const path = join(directory, 'kubeconfig');
    await writeFile(path, api.kubeconfig());
    vi.stubEnv('KUBECONFIG', path);
    api.put('inferencepools', 'pool', poolOf({ app: 'model' }, [8000, 8001]));
    api.put('pods', 'pod-a', podOf('10.1.0.1'), { app: 'model' });
    api.put('pods', 'other', podOf('10.1.0.9'), { app: 'other' });
  });

  afterEach(async () => {
    await list?.close();
    list = undefined;
    await api.stop();
    vi.unstubAllEnvs();
  });

  const watching = (): Promise<AllowList> => open({ isProtectionOn: true, inferencePool: 'default/pool' });

  test('allows addresses and names of its pods at its target ports, from the start', async () => {
    const pool = await watching();
    for (const host of ['10.1.0.1', 'pod-a']) {
      for (const port of [8000, 8001]) expect(pool.allows(host, port)).toBe(true);
      expect(pool.allows(host, 7777)).toBe(false);
    }
    expect(pool.allows('10.1.0.9', 8000)).toBe(false);
  });

  test('allows every port of its pods where only hosts are compared', async () => {
    const pool = await open({ isProtectionOn: true, inferencePool: 'pool', poolPorts: 'any' });
    expect(pool.allows('POD-A', 1)).toBe(true);
    expect(pool.allows('10.1.0.9', 8000)).toBe(false);
  });

  test('is read in its form before the API was final', async () => {
    api.put('inferencepools', 'pool', { spec: { selector: { app: 'model' }, targetPortNumber: 8000 } });
    const poolGroup = 'inference.networking.x-k8s.io';
    const pool = await open({ isProtectionOn: true, inferencePool: 'pool', poolGroup });
    expect(pool.allows('10.1.0.1', 8000)).toBe(true);
    expect(api.requests.some((request) => request.includes('x-k8s.io/v1alpha2'))).toBe(true);
  });

  test('follows pods that come, get an address, end and go', async () => {
    const pool = await watching();
    await api.watched('pods');
    api.put('pods', 'pod-b', { status: { phase: 'Pending' } }, { app: 'model' });
    api.put('pods', 'pod-b', podOf('10.1.0.2', 'fd00::2'), { app: 'model' });
    await until(() => pool.allows('10.1.0.2', 8000));
    expect(pool.allows('fd00::2', 8000)).toBe(true);
    api.put('pods', 'pod-b', podOf('10.1.0.2', 'fd00::2', 'Succeeded'), { app: 'model' });
    await until(() => !pool.allows('10.1.0.2', 8000));
    api.delete('pods', 'pod-a');
    await until(() => !pool.allows('pod-a', 8000));
  });

  test('follows its own ports and selector', async () => {
    const pool = await watching();
    await api.watched('inferencepools');
    api.put('inferencepools', 'pool', poolOf({ app: 'model' }, [9000]));
    await until(() => pool.allows('10.1.0.1', 9000));
    expect(pool.allows('10.1.0.1', 8000)).toBe(false);
    api.put('inferencepools', 'pool', poolOf({ app: 'other' }, [9000]));
    await until(() => pool.allows('10.1.0.9', 9000));
    expect(pool.allows('10.1.0.1', 9000)).toBe(false);
    await until(() => api.openWatchCount === 2);
  });

  test('keeps its last good form when it becomes unusable', async () => {
    const pool = await watching();
    await api.watched('inferencepools');
    for (const bad of [
      poolOf({}, [8000]),
      poolOf({ app: 'model' }, []),
      poolOf({ app: 'model' }, [0]),
      { spec: 1 },
    ]) {
      const before = log.messages('error').length;
      api.put('inferencepools', 'pool', bad);
      await until(() => log.messages('error').length > before);
      expect(pool.allows('10.1.0.1', 8000)).toBe(true);
    }
  });

  test('that is deleted allows nothing, and its pods again when it is back', async () => {
    const pool = await watching();
    await api.watched('inferencepools');
    api.delete('inferencepools', 'pool');
    await until(() => !pool.allows('10.1.0.1', 8000));
    api.put('inferencepools', 'pool', poolOf({ app: 'model' }, [8000]));
    await until(() => pool.allows('10.1.0.1', 8000));
  });

  test('that does not exist at the start is waited for without an error', async () => {
    api.delete('inferencepools', 'pool');
    const pool = await watching();
    expect(pool.allows('10.1.0.1', 8000)).toBe(false);
    await api.watched('inferencepools');
    api.put('inferencepools', 'pool', poolOf({ app: 'model' }, [8000]));
    await until(() => pool.allows('10.1.0.1', 8000));
  });

  test('is watched on from the last version when the server ends the watches', async () => {
    const pool = await watching();
    await Promise.all([api.watched('pods'), api.watched('inferencepools')]);
    api.bookmark('pods');
    const lists = countLists(api);
    api.endWatches();
    await api.watched('pods');
    api.put('pods', 'pod-b', podOf('10.1.0.2'), { app: 'model' });
    await until(() => pool.allows('10.1.0.2', 8000));
    expect(countLists(api)).toBe(lists);
  });

  test.each(['status', 'event'] as const)(
    'is listed anew when its version is gone, told as a %s',
    async (how) => {
      api.goneAs = how;
      const pool = await watching();
      await Promise.all([api.watched('pods'), api.watched('inferencepools')]);
      await api.stop();
      api.delete('pods', 'pod-a');
      api.put('pods', 'pod-b', podOf('10.1.0.2'), { app: 'model' });
      api.compact();
      await api.start();
      await until(() => pool.allows('10.1.0.2', 8000));
      expect(pool.allows('10.1.0.1', 8000)).toBe(false);
    },
  );

  test('keeps its endpoints while the server is away, says so once, and catches up', async () => {
    const pool = await watching();
    await Promise.all([api.watched('pods'), api.watched('inferencepools')]);
    await api.stop();
    await until(() => log.messages('error').length === 2);
    expect(pool.allows('10.1.0.1', 8000)).toBe(true);
    api.delete('pods', 'pod-a');
    await api.start();
    await until(() => !pool.allows('10.1.0.1', 8000));
    await until(
      () => log.messages('info').filter((message) => message.includes('watched again')).length === 2,
    );
    expect(log.messages('error')).toHaveLength(2);
  });

  test('is asked again after refusals at the start', async () => {
    api.refusals.push(403, 500);
    const pool = await watching();
    expect(pool.allows('10.1.0.1', 8000)).toBe(true);
  });

  test('leaves no request open after it was closed, not even one without an answer', async () => {
    const pool = await watching();
    await Promise.all([api.watched('pods'), api.watched('inferencepools')]);
    api.isSilent = true;
    const asked = api.requests.length;
    api.endWatches();
    await until(() => api.requests.length >= asked + 2);
    await pool.close();
    await until(() => api.openWatchCount === 0);
    await expect.poll(() => api.connectionCount()).toBe(0);
  });

  test.each([
    ['pool', 'x', /--pool-group "x" is not known/],
    ['a/b/c', undefined, /--inference-pool "a\/b\/c" names no InferencePool/],
    ['../pool', undefined, /names no InferencePool/],
  ])('named %j in group %j is refused', async (inferencePool, poolGroup, message) => {
    await expect(open({ isProtectionOn: true, inferencePool, poolGroup })).rejects.toThrow(message);
  });

  test('without a cluster is an error that says what to do', async () => {
    vi.stubEnv('KUBECONFIG', '/nonexistent');
    await expect(watching()).rejects.toMatchObject({ code: 'KVPEER_KUBERNETES' });
    vi.stubEnv('KUBECONFIG', '/dev/null');
    await expect(watching()).rejects.toThrow(/the file has no clusters, users and contexts; set KUBECONFIG/);
    vi.stubEnv('KUBECONFIG', '');
    vi.stubEnv('HOME', directory);
    await expect(watching()).rejects.toThrow(/set KUBECONFIG/);
  });
});

function countLists(api: KubernetesApi): number {
  return api.requests.filter((request) => request.startsWith('list')).length;
}

function poolOf(matchLabels: Record<string, string>, ports: readonly number[]): Record<string, unknown> {
  return { spec: { selector: { matchLabels }, targetPorts: ports.map((number) => ({ number })) } };
}

function podOf(ip: string, secondIp?: string, phase = 'Running'): Record<string, unknown> {
  const podIPs = [ip, ...(secondIp === undefined ? [] : [secondIp])].map((each) => ({ ip: each }));
  return { status: { phase, podIP: ip, podIPs } };
}
