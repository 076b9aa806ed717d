// The size of the replay's pools: the default rule, and the refusal to fill the machine's memory.
import { describe, expect, it } from 'vitest';
import { choosePoolBytes } from '../../src/main/cli/replay/sizing.js';

const GIB = 1024 ** 3;

const sizing = {
  peers: 4,
  blockBytes: 65_536,
  shards: 2,
  distinctBlocks: 1000,
  poolBytes: undefined,
  freeBytes: 8 * GIB,
};

describe('the size of a pool', () => {
  it('has room for the distinct blocks x 1.1 and 256 slots per shard', () => {
    expect(choosePoolBytes(sizing)).toBe((1100 + 512) * 65_536);
    expect(choosePoolBytes({ ...sizing, distinctBlocks: 1001, shards: 4 })).toBe((1102 + 1024) * 65_536);
  });

  it('is what was asked for', () => {
    expect(choosePoolBytes({ ...sizing, poolBytes: 12_345_678 })).toBe(12_345_678);
  });

  it('is refused with the numbers when all pools exceed half of the free memory', () => {
    expect(() => choosePoolBytes({ ...sizing, distinctBlocks: 20_000 })).toThrow(
      expect.objectContaining({
        code: 'KVPEER_MEMORY',
        message: expect.stringMatching(
          /4 pools of 1\.37 GiB.*20000 distinct blocks.*5\.50 GiB.*8\.00 GiB/,
        ) as string,
      }),
    );
    expect(() => choosePoolBytes({ ...sizing, poolBytes: GIB + 65_536 })).toThrow(/4 pools of 1\.00 GiB are/);
    expect(choosePoolBytes({ ...sizing, poolBytes: GIB })).toBe(GIB);
  });

  it('is taken as it is where nothing is known of the memory', () => {
    expect(choosePoolBytes({ ...sizing, poolBytes: 100 * GIB, freeBytes: undefined })).toBe(100 * GIB);
  });
});
