// Block hashes and keys against vectors that vLLM 0.33.0's own functions gave.

import { describe, expect, it } from 'vitest';

import { eventKeysOf } from '../../src/main/hashes/extra-keys.js';
import { BlockHasher, blockKey, splitBlockKey } from '../../src/main/hashes/index.js';
import type { BlockHashAlgorithm, HashContext } from '../../src/main/hashes/index.js';

const TOKENS = Array.from({ length: 64 }, (_, i) => i);
const SEED = 'vllm-none-hash';

async function hashesOf(
  algorithm: BlockHashAlgorithm,
  context: HashContext,
  seed = SEED,
  extraKeys: 'tagged' | 'bare' = 'tagged',
): Promise<string[]> {
  const hasher = await BlockHasher.create({ algorithm, seed, tokensPerHash: 16, extraKeys });
  return split(hasher.blockHashes(TOKENS, context), hasher.hashBytes);
}

function split(packed: Buffer, size: number): string[] {
  return Array.from({ length: packed.length / size }, (_, i) =>
    packed.toString('hex', i * size, (i + 1) * size),
  );
}

/** Seed hash, block 0, block 1: section 7.5 of the wire reference. */
const CHAINS: readonly (readonly [BlockHashAlgorithm, string, string, string, string])[] = [
  [
    'sha256_cbor',
    SEED,
    '9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0',
    'dc918a88b139e5afe60b88eda27508d4aee16c10fdc354791efea06206ac0749',
    'c300ec275d7bf08af8fc63e76cdc0086911bbc7091e03c5cf892553bef84ef0c',
  ],
  [
    'sha256_cbor',
    '0',
    '4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e',
    'd830de3d42c00f25a2949b5d12d98642664a44872c1614c5b0147556276afc9c',
    'fedd9e4abebebbe6f6cf96b682f08d316063fe2f22a5c552192dd62904fcccac',
  ],
  [
    'xxhash_cbor',
    '0',
    '1ebe36576dcb573f26b99533a20aaeca',
    '209f5d549fc07c8e39d823615ede61ce',
    '03888914ee75b87e89df867a21beb72b',
  ],
  [
    'xxhash_cbor',
    SEED,
    'a4e364baa0791a6f63bbf917db9b700d',
    'f2313f4548e185b1a011187a342021cc',
    '74ee692fcce0684e02de354d6ca364b4',
  ],
];

const LORA = { name: 'sql-adapter', path: '/adapters/sql' };
const FIRST_ITEM = { identifier: 'img-1', offset: 4, length: 20 };

/** Block 0 and block 3 with something beside the tokens, and where more than one thing meets. */
const EXTRA: readonly (readonly [string, HashContext, readonly string[], readonly string[]])[] = [
  [
    'a cache salt',
    { cacheSalt: 'tenant-a' },
    [
      '4e31e1ced73eb044a95997f0109d0ddab3d9145878214f1a0ee37c048b397859',
      '3966b756edc34803e0cac2a8981ddc28ceed56e0cd2d03780c512cab2674a97c',
    ],
    ['75d2a65f75cdebc83117c5b1d500382c', '7607698a3a1676e839ddec494cd4bc89'],
  ],
  [
    'an adapter',
    { lora: LORA },
    [
      'adc803fcae840973111bd63bf15dac6da359258fb73e16dbe87f95a5c33d7ef1',
      '74201f5048cda17d2f7778b6cba669292d7ac932b6a8858b695e71a2893f47c0',
    ],
    ['a429aa3082e18d948b00cce3d4e3cfd8', '64a3fcc621d28696a8a3195c7b6136b4'],
  ],
  [
    'multimodal items that cross blocks',
    { multimodal: [FIRST_ITEM, { identifier: 'img-2', offset: 30, length: 40 }] },
    [
      '624debf9546100b5093848668411db33035233117ced1e0564eb4403b3377092',
      '070821186839815478e864fe7947fd61ed3a9b32ad6d2c8a5ad3cc2993d6e445',
    ],
    ['cc7eee67221551d63290512488d323cc', '63a717b95cc25bb864c53686f324c661'],
  ],
  [
    'all of them, the salt not ASCII',
    {
      cacheSalt: 'Ümläut',
      lora: LORA,
      multimodal: [FIRST_ITEM, { identifier: 'img-2', offset: 40, length: 4 }],
    },
    [
      '364527b83f9478c9ba85ced8f40b76e547d1197836da91ad7363c9ccff3096b3',
      'af178a8e30bc9ab2ba5b8b67eec8a22df6efc0239ffc962acea6db690de7d9cb',
    ],
    ['1c4c7ce927e9f7b5f6195d6c815374e9', '7697d497bdc44a8b706c88fc16b99804'],
  ],
];

describe('the block hash chain', () => {
  it.each(CHAINS)(
    '%s with the seed %s is the one vLLM computes',
    async (algorithm, seed, none, ...blocks) => {
      const hasher = await BlockHasher.create({ algorithm, seed, tokensPerHash: 16 });
      expect(Buffer.from(hasher.noneHash).toString('hex')).toBe(none);
      expect(split(hasher.blockHashes(TOKENS.slice(0, 32)), hasher.hashBytes)).toEqual(blocks);
    },
  );

  it.each(EXTRA)('covers %s as vLLM 0.33 does', async (_what, context, sha256, xxhash) => {
    expect(await hashesOf('sha256_cbor', context)).toMatchObject({ 0: sha256[0], 3: sha256[1] });
    expect(await hashesOf('xxhash_cbor', context)).toMatchObject({ 0: xxhash[0], 3: xxhash[1] });
  });

  it('writes salts, adapters and items bare for releases before the tags', async () => {
    const [salted] = await hashesOf('sha256_cbor', { cacheSalt: 'tenant-a' }, SEED, 'bare');
    expect(salted).toBe('6cb0a72bb1d5fcd9e8edc0a7c0d918f6545a8d98f4370ef894cac0191c41787a');
    const all = { cacheSalt: 'tenant-a', lora: LORA, multimodal: [FIRST_ITEM] };
    const [mixed] = await hashesOf('sha256_cbor', all, SEED, 'bare');
    expect(mixed).toBe('403e17a499faa8e01a4660c4c610bb735eeae98c125fa02399965df86e3c7ddd');
  });

  it('writes token numbers of every size in their shortest form', async () => {
    const tokens = [
      0, 23, 24, 255, 256, 65_535, 65_536, 151_643, 4_294_967_295, 4_294_967_296, 1, 2, 3, 4, 5, 6,
    ];
    const hasher = await BlockHasher.create({ algorithm: 'sha256_cbor', seed: '0', tokensPerHash: 16 });
    expect(hasher.blockHashes(tokens).toString('hex')).toBe(
      'c7db8ce5c6e8faee94a7325718dd77f5aba59a7866615b42e4c5c2a212f3966e',
    );
  });

  it('leaves out a block that is not full', async () => {
    const hasher = await BlockHasher.create({ algorithm: 'sha256_cbor', tokensPerHash: 16 });
    expect(hasher.blockHashes(TOKENS.slice(0, 31))).toHaveLength(32);
    expect(hasher.blockHashes(TOKENS.slice(0, 15))).toHaveLength(0);
  });

  it('needs a whole number of tokens per hash', async () => {
    await expect(BlockHasher.create({ algorithm: 'sha256_cbor', tokensPerHash: 0 })).rejects.toMatchObject({
      code: 'KVPEER_INVALID_ARGUMENT',
    });
  });
});

describe('block keys', () => {
  it('are 36 bytes with SHA-256 and 20 with XXH3-128, the group at the end', async () => {
    for (const [algorithm, keyBytes] of [
      ['sha256_cbor', 36],
      ['xxhash_cbor', 20],
    ] as const) {
      const hasher = await BlockHasher.create({ algorithm, tokensPerHash: 16 });
      const keys = hasher.blockKeys(TOKENS, { group: 3 });
      expect(keys).toHaveLength(4 * keyBytes);
      const { blockHash, group } = splitBlockKey(keys.subarray(keyBytes, 2 * keyBytes));
      expect(group).toBe(3);
      expect(blockHash).toEqual(hasher.blockHashes(TOKENS).subarray(hasher.hashBytes, 2 * hasher.hashBytes));
      expect(blockKey(blockHash, group)).toEqual(keys.subarray(keyBytes, 2 * keyBytes));
    }
  });

  it('of a chunk of several units carry the hash of the last one', async () => {
    const hasher = await BlockHasher.create({ algorithm: 'sha256_cbor', tokensPerHash: 16 });
    const hashes = split(hasher.blockHashes(TOKENS), 32);
    const keys = split(hasher.blockKeys(TOKENS, { hashesPerChunk: 2 }), 36);
    expect(keys).toEqual([`${hashes[1]}00000000`, `${hashes[3]}00000000`]);
  });

  it('that are too short to hold a hash are refused', () => {
    expect(() => splitBlockKey(new Uint8Array(4))).toThrow(/a block key of 4 bytes/);
  });
});

describe('a prompt that is hashed in pieces', () => {
  it('has the hashes of the whole, with adapter, items over the border of pieces, and salt', async () => {
    const hasher = await BlockHasher.create({ algorithm: 'sha256_cbor', tokensPerHash: 4 });
    const context: HashContext = {
      lora: LORA,
      cacheSalt: 'tenant-a',
      multimodal: [
        { identifier: 'a', offset: 2, length: 9 },
        { identifier: 'b', offset: 14, length: 30 },
      ],
    };
    const whole = hasher.blockHashes(TOKENS, context);
    const pieces: Buffer[] = [];
    let parent = hasher.noneHash;
    for (let first = 0; first < TOKENS.length; first += 12) {
      const piece = hasher.blockHashes(TOKENS.slice(first, first + 12), context, {
        parent,
        tokenCount: first,
      });
      parent = piece.subarray(piece.length - 32);
      pieces.push(piece);
    }
    expect(Buffer.concat(pieces).equals(whole)).toBe(true);
  });

  it('says of its blocks in KV events what vLLM says: names as they are, items with their place', () => {
    const context: HashContext = { lora: LORA, cacheSalt: 's', multimodal: [FIRST_ITEM] };
    expect([0, 16, 32].map((first) => eventKeysOf(context, first, 16))).toEqual([
      ['sql-adapter', ['img-1', 4], 's'],
      ['sql-adapter', ['img-1', -12]],
      ['sql-adapter'],
    ]);
    expect(eventKeysOf({}, 0, 16)).toBeUndefined();
  });
});
