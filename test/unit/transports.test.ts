// Reading the transports out of an agent's metadata.

import { expect, test } from 'vitest';
import { transportsIn } from '../../src/main/shards/transports.js';

/** Metadata of a receive agent with UCX_TLS=tcp,cma,self on loopback, up to its memory section. */
const METADATA = Buffer.concat([
  Buffer.from(
    'nixlSerDes|Agent\x06\0\0\0\0\0\0\0target|Conns\x08\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0|t\x03\0\0\0\0\0\0\0UCX|',
    'latin1',
  ),
  Buffer.from('c\x6e\0\0\0\0\0\0\0', 'latin1'),
  Buffer.from(
    '20a11f55c34754904a0000637577cc2b320040975000000000004f03c08822a9bc00229ed18e010e0102be69c7d958ec39f2f9ffffefcf19' +
      '17b75138539e3e4bd7e037370113230082cf010208be69c7d958ec3972478bbd37063600242e5077ccab3300922100842625000087',
    'hex',
  ),
  Buffer.from('|', 'latin1'),
]);

test('names what the agent offers', () => {
  expect(transportsIn(METADATA, false)).toEqual(['tcp', 'cma', 'self']);
});

test('finds no RDMA transport where there is none, even when it is looked for', () => {
  expect(transportsIn(METADATA, true)).toEqual(['tcp', 'cma', 'self']);
});

test('metadata of another kind offers nothing', () => {
  expect(transportsIn(Buffer.from('none'), false)).toEqual([]);
});
