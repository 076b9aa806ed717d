// Reading the kernel's table of TCP connections.

import { expect, test } from 'vitest';
import { unsentBytesIn } from '../../src/shared/socket-backlog.js';

const HEADER =
  '  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode';

// The form of a table while a peer stands still and the agent that wrote to it has been destroyed.
const IPV4 = `${HEADER}
   0: 0100007F:9C41 00000000:0000 0A 00000003:00000000 00:00000000 00000000     0        0 40211 1 00000000a90c49e8 100 0 0 10 0
   1: 0100007F:8978 0100007F:9E17 06 00000000:00000000 03:00001378 00000000     0        0 0 3 00000000b1d3763f
   2: 0100007F:8E92 0100007F:9C41 04 0027AC40:00000000 04:00000014 00000000     0        0 0 2 00000000a3c1a2b1 20 4 0 10 -1
   3: 0100007F:8E94 0100007F:9C41 01 00000400:00000000 01:00000014 00000000     0        0 51877 2 000000000f1f9f05 20 4 30 10 -1
   4: 0100000A:8E96 0200000A:9C41 04 00000010:00000000 04:00000014 00000000     0        0 0 2 00000000a3c1a2b2 20 4 0 10 -1
`;

const IPV6 = `${HEADER}
   0: 0000000000000000FFFF00000100007F:8E92 0000000000000000FFFF00000100007F:9C41 04 00000100:00000000 04:00000014 00000000 0 0 0 2 0000000000000000 20 4 0 10 -1
   1: B80D0120000000000000000001000000:8E92 B80D0120000000000000000002000000:9C41 0B 00000200:00000000 04:00000014 00000000 0 0 0 2 0000000000000000 20 4 0 10 -1
`;

test('counts what closed connections to an address have not sent', () => {
  expect(unsentBytesIn(IPV4, new Set(['127.0.0.1']))).toBe(0x27ac40);
});

test('keeps addresses apart', () => {
  expect(unsentBytesIn(IPV4, new Set(['10.0.0.2']))).toBe(0x10);
  expect(unsentBytesIn(IPV4, new Set(['10.0.0.1']))).toBe(0);
});

test('counts every address without a set', () => {
  expect(unsentBytesIn(IPV4)).toBe(0x27ac50);
});

test('knows IPv6 addresses in any spelling, and IPv4 ones inside them', () => {
  expect(unsentBytesIn(IPV6, new Set(['127.0.0.1']))).toBe(0x100);
  expect(unsentBytesIn(IPV6, new Set(['2001:0db8:0:0:0:0:0:2']))).toBe(0x200);
});

test('an empty table has nothing unsent', () => {
  expect(unsentBytesIn(`${HEADER}\n`)).toBe(0);
  expect(unsentBytesIn('')).toBe(0);
});
