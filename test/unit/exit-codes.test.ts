// Exit statuses: what an error at start-up means to a script or a service manager.

import { expect, it } from 'vitest';
import { exitCodeOf } from '../../src/main/cli/exit-codes.js';
import { KvpeerError } from '../../src/main/errors.js';

it.each([
  ['KVPEER_INVALID_OPTION', 2],
  ['KVPEER_INVALID_PARAMS', 2],
  ['KVPEER_MEMORY', 3],
  ['KVPEER_NIXL_UNAVAILABLE', 3],
  ['KVPEER_NATIVE_UNAVAILABLE', 3],
  ['KVPEER_BIND', 3],
  ['KVPEER_DEADLINE', 1],
  ['KVPEER_WORKER_LOST', 1],
] as const)('ends with %s as %d', (code, status) => {
  expect(exitCodeOf(new KvpeerError(code, 'x'))).toBe(status);
});

it('takes what the system lacks for a fault of the host, anything else for a failure', () => {
  expect(exitCodeOf(Object.assign(new Error('x'), { code: 'EADDRINUSE' }))).toBe(3);
  expect(exitCodeOf(Object.assign(new Error('x'), { code: 'ENOMEM' }))).toBe(3);
  expect(exitCodeOf(Object.assign(new Error('x'), { code: 'EPIPE' }))).toBe(1);
  expect(exitCodeOf(new Error('x'))).toBe(1);
  expect(exitCodeOf('x')).toBe(1);
});
