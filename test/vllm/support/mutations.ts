// Messages that are nearly right: valid ones with a type, a length, a field or a byte changed, by a seeded chance.

import { encode } from '@msgpack/msgpack';

import type { WireMessage } from './wire-peer.js';

export type Chance = () => number;

/** mulberry32: 0 <= x < 1, the same sequence for the same seed. */
export function chanceOf(seed: number): Chance {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let x = Math.imul(state ^ (state >>> 15), state | 1);
    x = (x + Math.imul(x ^ (x >>> 7), x | 61)) ^ x;
    return ((x ^ (x >>> 14)) >>> 0) / 2 ** 32;
  };
}

function pick<T>(chance: Chance, values: readonly T[]): T {
  return values[Math.floor(chance() * values.length)];
}

/** Depth beyond what any message needs. */
const DEEP: unknown = Array.from({ length: 40 }).reduce<unknown>((inner) => [inner], 0);

const WRONG_VALUES: readonly unknown[] = [
  null,
  true,
  -1,
  0,
  1.5,
  2 ** 31,
  2 ** 53 - 1,
  '',
  'x',
  'y'.repeat(600),
  [],
  [1, 2, 3],
  {},
  new Uint8Array(0),
  new Uint8Array(36),
  DEEP,
];

/** Lists and texts that claim to be longer than any message can be. */
const GIANT_CLAIMS: readonly Uint8Array[] = [
  Buffer.from('ddffffffff', 'hex'),
  Buffer.from('dfffffffff', 'hex'),
  Buffer.from('c6ffffffff00', 'hex'),
  Buffer.from('81a474797065dbffffffff', 'hex'),
  Buffer.from('82a474797065a66c6f6f6b7570a46b657973ddffffffffc40100', 'hex'),
];

const NOT_MAPS: readonly unknown[] = [null, 7, 'lookup', [], ['type', 'lookup'], true];

/** One of the valid messages with something wrong with it; the bytes of a frame. */
export function mutate(messages: readonly WireMessage[], chance: Chance): Uint8Array {
  const message = { ...pick(chance, messages) };
  const names = Object.keys(message);
  const name = pick(chance, names);
  switch (Math.floor(chance() * 9)) {
    case 0:
      return encode({ ...message, [name]: pick(chance, WRONG_VALUES) });
    case 1:
      return encode(Object.fromEntries(Object.entries(message).filter(([key]) => key !== name)));
    case 2:
      return encode({ ...message, [`extra_${Math.floor(chance() * 100)}`]: pick(chance, WRONG_VALUES) });
    case 3: {
      const whole = encode(message);
      return whole.subarray(0, Math.floor(chance() * whole.length));
    }
    case 4: {
      const changed = Uint8Array.from(encode(message));
      changed[Math.floor(chance() * changed.length)] ^= 1 << Math.floor(chance() * 8);
      return changed;
    }
    case 5:
      return pick(chance, GIANT_CLAIMS);
    case 6:
      return encode(pick(chance, NOT_MAPS));
    case 7:
      return encode({ ...message, type: pick(chance, ['', 'hello', 'LOOKUP', 7, null]) });
    default:
      return Buffer.concat([encode(message), Buffer.of(Math.floor(chance() * 256))]);
  }
}
