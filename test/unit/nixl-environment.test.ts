// What is set for the transport before the library is loaded.

import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { activeRdmaPorts, nixlSettings } from '../../src/shared/nixl-environment.js';

const address = (text: string) => ({
  address: text,
  netmask: '255.0.0.0',
  family: 'IPv4' as const,
  mac: '00:00:00:00:00:00',
  internal: false,
  cidr: null,
});
const INTERFACES = {
  lo: [address('127.0.0.1'), address('::1')],
  eth9: [address('10.1.2.3'), address('2001:db8::7')],
};

function valueOf(
  name: string,
  host: string,
  env: NodeJS.ProcessEnv = {},
  rdmaPorts: readonly string[] = [],
): string | undefined {
  return nixlSettings(host, env, INTERFACES, rdmaPorts).find((setting) => setting.name === name)?.value;
}

test('a node on one address opens the transport on that interface only', () => {
  expect(valueOf('UCX_NET_DEVICES', '10.1.2.3')).toBe('eth9');
  expect(valueOf('UCX_NET_DEVICES', '127.0.0.1')).toBe('lo');
  expect(valueOf('UCX_NET_DEVICES', '127.0.0.7')).toBe('lo');
  expect(valueOf('UCX_NET_DEVICES', '0::0:1')).toBe('lo');
  expect(valueOf('UCX_NET_DEVICES', '2001:DB8:0::7')).toBe('eth9');
});

test('a node on a wildcard or an unknown address leaves the interfaces open', () => {
  expect(valueOf('UCX_NET_DEVICES', '0.0.0.0')).toBeUndefined();
  expect(valueOf('UCX_NET_DEVICES', 'node-7')).toBeUndefined();
  expect(valueOf('UCX_NET_DEVICES', '192.0.2.1')).toBeUndefined();
});

test('the heap is kept safe from the memory hooks, SIGHUP stays ours, shared-memory transports that hide deaths are off', () => {
  expect(valueOf('UCX_MEM_EVENTS', '127.0.0.1')).toBe('n');
  expect(valueOf('UCX_DEBUG_SIGNO', '127.0.0.1')).toBe('0');
  expect(valueOf('UCX_LOG_FILE', '127.0.0.1')).toBe('stderr');
  expect(valueOf('UCX_TLS', '127.0.0.1')).toBe('^posix,sysv');
});

test("the operator's own settings win and are marked as such", () => {
  const settings = nixlSettings('127.0.0.1', { UCX_TLS: 'tcp,self' }, INTERFACES);
  expect(settings.find(({ name }) => name === 'UCX_TLS')).toEqual({
    name: 'UCX_TLS',
    value: 'tcp,self',
    isOperators: true,
  });
  expect(settings.find(({ name }) => name === 'UCX_MEM_EVENTS')?.isOperators).toBe(false);
});

test('RDMA ports stay beside the interface, except on loopback, where nothing leaves the host', () => {
  const ports = ['mlx5_0:1', 'mlx5_1:1'];
  expect(valueOf('UCX_NET_DEVICES', '10.1.2.3', {}, ports)).toBe('mlx5_0:1,mlx5_1:1,eth9');
  expect(valueOf('UCX_NET_DEVICES', '127.0.0.1', {}, ports)).toBe('lo');
});

test('only active RDMA ports count, and a host may have none', () => {
  const folder = mkdtempSync(join(tmpdir(), 'kvpeer-'));
  for (const [port, state] of [
    ['1', '4: ACTIVE\n'],
    ['2', '1: DOWN\n'],
  ]) {
    mkdirSync(join(folder, 'mlx5_0/ports', port), { recursive: true });
    writeFileSync(join(folder, 'mlx5_0/ports', port, 'state'), state);
  }
  expect(activeRdmaPorts(folder)).toEqual(['mlx5_0:1']);
  rmSync(folder, { recursive: true });
  expect(activeRdmaPorts(folder)).toEqual([]);
});
