// KV events as bytes: the golden batches that llm-d's decoder took, and forms at the edges.

import { describe, expect, it } from 'vitest';

import { type EventForm, type KvEvent, writeBatch } from '../../src/main/events/payload.js';

const hash = (last: number): Buffer => Buffer.from([0, 0, 0, 0, 0, 0, 0, last]);
const hex = (events: readonly KvEvent[], form: EventForm = 'array'): string =>
  writeBatch(events, { timeS: 1.7e9, rank: 0, form }).toString('hex');

const stored: KvEvent = {
  kind: 'stored',
  hashes: [hash(0xa1), hash(0xa2)],
  parent: undefined,
  tokenIds: [Uint32Array.of(0, 1, 2, 3), Uint32Array.of(4, 5, 6, 7)],
  tokensPerBlock: 4,
  loraName: undefined,
  extraKeys: undefined,
};

describe('a batch of KV events', () => {
  it('has the golden bytes of a store in array form', () => {
    expect(hex([stored])).toBe(
      '93cb41d954fc400000009199ab426c6f636b53746f72656492c40800000000000000a1c40800000000000000a2c098000102030405060704c0a3435055c0c000',
    );
  });

  it('has the golden bytes of a store in map form', () => {
    expect(hex([stored], 'map')).toBe(
      '93cb41d954fc400000009186a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392c40800000000000000a1c40800000000000000a2b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473980001020304050607aa626c6f636b5f73697a6504a66d656469756da343505500',
    );
  });

  it('has the golden bytes of a removal and of a clearing', () => {
    expect(
      hex([{ kind: 'removed', hashes: [hash(0xa2)] }]).replace('cb41d954fc40000000', 'cb41d954fc40400000'),
    ).toBe('93cb41d954fc404000009193ac426c6f636b52656d6f76656491c40800000000000000a2a343505500');
    expect(hex([{ kind: 'cleared' }]).replace('cb41d954fc40000000', 'cb41d954fc40800000')).toBe(
      '93cb41d954fc408000009191b0416c6c426c6f636b73436c656172656400',
    );
  });

  it('writes parent, tokens of 32 bits, LoRA name and extra keys, with nil for a block that has none', () => {
    const bytes = hex([
      {
        ...stored,
        parent: hash(0xa0),
        tokenIds: [Uint32Array.of(0xffff_ffff), Uint32Array.of(200)],
        tokensPerBlock: 1,
        loraName: 'l',
        extraKeys: [['salt', ['image', 3]], undefined],
      },
    ]);
    expect(bytes).toBe(
      '93cb41d954fc400000009199ab426c6f636b53746f72656492c40800000000000000a1c40800000000000000a2' +
        'c40800000000000000a0' +
        '92ceffffffffccc8' +
        '01c0a3435055a16c' +
        '9292a473616c7492a5696d61676503c0' +
        '00',
    );
  });

  it.each([
    [-1, 'ff'],
    [-32, 'e0'],
    [-33, 'd0df'],
    [-128, 'd080'],
    [-129, 'd1ff7f'],
    [-32_768, 'd18000'],
    [-32_769, 'd2ffff7fff'],
    [-(2 ** 31), 'd280000000'],
    [2 ** 31 - 1, 'ce7fffffff'],
  ])('writes the place %i of an item that may have begun in an earlier block', (place, bytes) => {
    const written = hex([{ ...stored, extraKeys: [[['i', place]], undefined] }]);
    expect(written.endsWith(`929192a169${bytes}c000`)).toBe(true);
  });

  it('keeps the time a float64 where it is a whole number', () => {
    expect(writeBatch([], { timeS: 5, rank: 300, form: 'array' }).toString('hex')).toBe(
      '93cb401400000000000090cd012c',
    );
  });
});
