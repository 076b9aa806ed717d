// What a body of the token-in API says of the hashes of its blocks, and when it does not say enough.

import { describe, expect, it } from 'vitest';

import { Body } from '../../src/main/sidecar/body.js';
import { scanJsonObject } from '../../src/main/sidecar/json-scan.js';
import { promptOf, type Prompt, type PromptFault } from '../../src/main/sidecar/prompt.js';
import { type FetchModels, ServedModels } from '../../src/main/sidecar/served-models.js';

function read(text: string | object): Prompt | PromptFault {
  const bytes = Buffer.from(typeof text === 'string' ? text : JSON.stringify(text));
  // In two pieces, as it may arrive.
  const at = bytes.length >> 1;
  return promptOf(Body.of(bytes.subarray(0, at), bytes.subarray(at)), scanJsonObject(bytes));
}

const IDS = { token_ids: [1, 2, 3] };

describe('a prompt', () => {
  it('is its token ids, the model, the salt and the multimodal items in the order of their places', () => {
    expect(
      read({
        ...IDS,
        model: 'sql-adapter',
        cache_salt: 'tenant-a',
        features: {
          mm_hashes: { image: ['late', 'early'], audio: ['middle'] },
          mm_placeholders: {
            image: [
              { offset: 40, length: 8 },
              { offset: 2, length: 10 },
            ],
            audio: [{ offset: 12, length: 3 }],
          },
          kwargs_data: { image: ['AAAA', null] },
        },
      }),
    ).toEqual({
      tokenIds: Uint32Array.of(1, 2, 3),
      model: 'sql-adapter',
      cacheSalt: 'tenant-a',
      multimodal: [
        { identifier: 'early', offset: 2, length: 10 },
        { identifier: 'middle', offset: 12, length: 3 },
        { identifier: 'late', offset: 40, length: 8 },
      ],
    });
  });

  it.each([
    [{}],
    [{ model: null, cache_salt: null, features: null }],
    [{ model: '', cache_salt: '' }],
    [{ features: { mm_hashes: {}, mm_placeholders: {} } }],
  ])('beside which stands %j has nothing but its tokens', (more) => {
    expect(read({ ...IDS, ...more })).toEqual({
      tokenIds: Uint32Array.of(1, 2, 3),
      model: undefined,
      cacheSalt: undefined,
      multimodal: [],
    });
  });

  it('is read as Python reads it where a key is there twice', () => {
    expect(read('{"token_ids":[1],"cache_salt":"a","cache_salt":"b","token_ids":[2]}')).toMatchObject({
      tokenIds: Uint32Array.of(2),
      cacheSalt: 'b',
    });
  });

  const one = (hashes: unknown, places: unknown): object => ({
    features: { mm_hashes: hashes, mm_placeholders: places },
  });
  it.each<[object, PromptFault]>([
    [{ token_ids: undefined }, 'no-tokens'],
    [{ token_ids: '1,2' }, 'no-tokens'],
    [{ token_ids: [1, -1] }, 'no-tokens'],
    [{ token_ids: [1.5] }, 'no-tokens'],
    [{ model: 7 }, 'unknown-model'],
    [{ model: ['m'] }, 'unknown-model'],
    [{ cache_salt: 7 }, 'unknown-salt'],
    [{ cache_salt: '\ud800' }, 'unknown-salt'],
    [{ features: [] }, 'unknown-features'],
    [{ features: 'x' }, 'unknown-features'],
    [{ features: {} }, 'unknown-features'],
    [one({ image: ['a'] }, {}), 'unknown-features'],
    [one({ image: ['a'] }, { audio: [{ offset: 0, length: 1 }] }), 'unknown-features'],
    [one({ image: ['a', 'b'] }, { image: [{ offset: 0, length: 1 }] }), 'unknown-features'],
    [one({ image: [null] }, { image: [{ offset: 0, length: 1 }] }), 'unknown-features'],
    [one({ image: ['a'] }, { image: [{ offset: -1, length: 1 }] }), 'unknown-features'],
    [one({ image: ['a'] }, { image: [{ offset: 0, length: 0 }] }), 'unknown-features'],
    [one({ image: ['a'] }, { image: [{ offset: 0.5, length: 2 }] }), 'unknown-features'],
    [one({ image: ['a'] }, { image: [[0, 2]] }), 'unknown-features'],
    [
      one(
        { image: ['a', 'b'] },
        {
          image: [
            { offset: 0, length: 5 },
            { offset: 4, length: 2 },
          ],
        },
      ),
      'unknown-features',
    ],
    [
      one(
        { image: Array.from({ length: 1025 }, () => 'a') },
        { image: Array.from({ length: 1025 }, (_, i) => ({ offset: i, length: 1 })) },
      ),
      'unknown-features',
    ],
  ])('with %j is not hashed: %s', (more, fault) => {
    expect(read({ ...IDS, ...more })).toBe(fault);
  });
});

function listing(...data: object[]): string {
  return JSON.stringify({ object: 'list', data });
}

function served(fetch: FetchModels<number>): {
  readonly models: ServedModels<number>;
  readonly clock: { ms: number };
  readonly asked: number[];
} {
  const clock = { ms: 0 };
  const asked: number[] = [];
  const models = new ServedModels<number>(
    (rank, signal) => {
      asked.push(rank);
      return fetch(rank, signal);
    },
    () => clock.ms,
  );
  return { models, clock, asked };
}

const LIST = listing(
  { id: 'llama', root: '/models/llama', parent: null },
  { id: 'sql-adapter', root: '/adapters/sql', parent: 'llama' },
  { id: 'lost', root: null, parent: 'llama' },
);

describe('the list of a model server', () => {
  it('tells its model from adapters, and is asked once for both', async () => {
    const { models, asked } = served(() => Promise.resolve(LIST));
    expect(await Promise.all(['llama', 'sql-adapter'].map((name) => models.find(0, name)))).toEqual([
      { kind: 'base' },
      { kind: 'adapter', adapter: { name: 'sql-adapter', path: '/adapters/sql' } },
    ]);
    expect(await models.find(1, 'llama')).toEqual({ kind: 'base' });
    expect(asked).toEqual([0, 1]);
  });

  it('is fetched again when it is old, and for a name that it does not have, at most once a second', async () => {
    const { models, clock, asked } = served(() => Promise.resolve(LIST));
    for (const name of ['llama', 'new', 'new', 'lost']) await models.find(0, name);
    expect(asked).toHaveLength(1);
    clock.ms = 1_001;
    expect(await models.find(0, 'new')).toBeUndefined();
    await models.find(0, 'new');
    expect(asked).toHaveLength(2);
    clock.ms = 11_002;
    await models.find(0, 'llama');
    expect(asked).toHaveLength(3);
  });

  it.each<[string, FetchModels<number>]>([
    ['is not there', () => Promise.resolve(undefined)],
    ['is no JSON', () => Promise.resolve('<html>')],
    ['is another JSON', () => Promise.resolve('{"data":{}}')],
    ['fails', () => Promise.reject(new Error('refused'))],
  ])('that %s says nothing of any name', async (_, fetch) => {
    expect(await served(fetch).models.find(0, 'llama')).toBeUndefined();
  });
});
