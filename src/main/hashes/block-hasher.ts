// vLLM's block hash chain, and the keys under which blocks are looked up (wire reference sections 7.1 to 7.4).

import { createHash } from 'node:crypto';

import { createXXHash128 } from 'hash-wasm';

import { KvpeerError } from '../errors.js';
import { CborWriter } from './cbor.js';
import type { ExtraKeyForm, HashContext } from './extra-keys.js';
import { extraKeysOf } from './extra-keys.js';

/**
 * vLLM's `--prefix-caching-hash-algo`. Its default `sha256` and `xxhash` hash Python's pickle of the block and can be
 * computed by Python only.
 */
export type BlockHashAlgorithm = 'sha256_cbor' | 'xxhash_cbor';

export const BLOCK_HASH_BYTES: Readonly<Record<BlockHashAlgorithm, number>> = {
  sha256_cbor: 32,
  xxhash_cbor: 16,
};

const GROUP_BYTES = 4;

export interface BlockHasherOptions {
  readonly algorithm: BlockHashAlgorithm;
  /** The engines' seed: PYTHONHASHSEED where it is set. Default: `vllm-none-hash`, as vLLM's for sha256_cbor. */
  readonly seed?: string;
  /** Tokens of one hash (`hash_block_size`): the block size of a model with one KV cache group. */
  readonly tokensPerHash: number;
  /** Default: `tagged`, vLLM 0.33. */
  readonly extraKeys?: ExtraKeyForm;
}

export interface BlockKeyOptions extends HashContext {
  /** KV cache group of the keys. Default: 0. */
  readonly group?: number;
  /** Hash units of one offloaded chunk; the key of a chunk has the hash of its last unit. Default: 1. */
  readonly hashesPerChunk?: number;
}

/** Appends the group index to a block hash: 36 bytes for SHA-256, 20 for XXH3-128. */
export function blockKey(blockHash: Uint8Array, group = 0): Buffer {
  const key = Buffer.alloc(blockHash.length + GROUP_BYTES);
  key.set(blockHash);
  key.writeUInt32BE(group, blockHash.length);
  return key;
}

/** Takes a key apart. @throws KVPEER_INVALID_ARGUMENT for a key that is too short to hold a hash and a group */
export function splitBlockKey(key: Uint8Array): { readonly blockHash: Buffer; readonly group: number } {
  const bytes = Buffer.from(key.buffer, key.byteOffset, key.byteLength);
  const hashBytes = bytes.length - GROUP_BYTES;
  if (hashBytes < 1) {
    throw new KvpeerError(
      'KVPEER_INVALID_ARGUMENT',
      `a block key of ${bytes.length} bytes; it is a block hash and ${GROUP_BYTES} bytes of the group`,
    );
  }
  return { blockHash: bytes.subarray(0, hashBytes), group: bytes.readUInt32BE(hashBytes) };
}

export class BlockHasher {
  readonly algorithm: BlockHashAlgorithm;
  /** Bytes of a hash; a key has four more. */
  readonly hashBytes: number;
  /** The parent of every first block. */
  readonly noneHash: Uint8Array;
  readonly #digest: (bytes: Uint8Array) => Uint8Array;
  readonly #tokensPerHash: number;
  readonly #extraKeys: ExtraKeyForm;
  readonly #writer = new CborWriter();

  /** Asynchronous because XXH3 is WebAssembly, which is compiled once. @throws KVPEER_INVALID_ARGUMENT */
  static async create(options: BlockHasherOptions): Promise<BlockHasher> {
    const { tokensPerHash } = options;
    if (!Number.isInteger(tokensPerHash) || tokensPerHash < 1) {
      throw new KvpeerError(
        'KVPEER_INVALID_ARGUMENT',
        `tokensPerHash is ${tokensPerHash}; give the engine's hash block size, a whole number above 0`,
      );
    }
    return new BlockHasher(options, await digestOf(options.algorithm));
  }

  private constructor(options: BlockHasherOptions, digest: (bytes: Uint8Array) => Uint8Array) {
    this.algorithm = options.algorithm;
    this.hashBytes = BLOCK_HASH_BYTES[options.algorithm];
    this.#digest = digest;
    this.#tokensPerHash = options.tokensPerHash;
    this.#extraKeys = options.extraKeys ?? 'tagged';
    this.noneHash = digest(
      this.#writer
        .reset()
        .text(options.seed ?? 'vllm-none-hash')
        .bytes(),
    );
  }

  /**
   * The hashes of all full blocks of a prompt, packed: `floor(tokens / tokensPerHash) * hashBytes` bytes.
   *
   * @param before for a prompt that is hashed in pieces: the hash of the block before the first, and the number of tokens
   *   before it, a multiple of `tokensPerHash`
   */
  blockHashes(
    tokenIds: ArrayLike<number>,
    context: HashContext = {},
    before: { readonly parent: Uint8Array; readonly tokenCount: number } = {
      parent: this.noneHash,
      tokenCount: 0,
    },
  ): Buffer {
    const perHash = this.#tokensPerHash;
    const count = Math.floor(tokenIds.length / perHash);
    const hashes = Buffer.allocUnsafe(count * this.hashBytes);
    let { parent } = before;
    for (let i = 0; i < count; i++) {
      const first = i * perHash;
      const writer = this.#writer.reset().array(3).byteString(parent).array(perHash);
      for (let t = first; t < first + perHash; t++) writer.integer(tokenIds[t]);
      writer.value(extraKeysOf(context, this.#extraKeys, before.tokenCount + first, perHash));
      parent = this.#digest(writer.bytes());
      hashes.set(parent, i * this.hashBytes);
    }
    return hashes;
  }

  /** The keys of all full chunks of a prompt, packed, as `lookup` and `load` of a request take them. */
  blockKeys(tokenIds: ArrayLike<number>, options: BlockKeyOptions = {}): Buffer {
    const { group = 0, hashesPerChunk = 1 } = options;
    const hashes = this.blockHashes(tokenIds, options);
    const { hashBytes } = this;
    const count = Math.floor(hashes.length / hashBytes / hashesPerChunk);
    const keyBytes = hashBytes + GROUP_BYTES;
    const keys = Buffer.allocUnsafe(count * keyBytes);
    for (let i = 0; i < count; i++) {
      const last = (i + 1) * hashesPerChunk - 1;
      hashes.copy(keys, i * keyBytes, last * hashBytes, (last + 1) * hashBytes);
      keys.writeUInt32BE(group, i * keyBytes + hashBytes);
    }
    return keys;
  }
}

async function digestOf(algorithm: BlockHashAlgorithm): Promise<(bytes: Uint8Array) => Uint8Array> {
  switch (algorithm) {
    case 'sha256_cbor':
      return (bytes) => createHash('sha256').update(bytes).digest();
    case 'xxhash_cbor': {
      const xxh = await createXXHash128();
      return (bytes) => xxh.init().update(bytes).digest('binary');
    }
  }
}
