// The hash, the block content and the checksum of the native code once more, in BigInt arithmetic: the oracle in tests.

import type { Layout } from '../../src/shared/layout.js';
import type { KeyPlace } from '../../src/shared/slot-state.js';

const MASK = (1n << 64n) - 1n;

function foldedProduct(a: bigint, b: bigint): bigint {
  const product = (a & MASK) * (b & MASK);
  return (product & MASK) ^ (product >> 64n);
}

function wordAt(bytes: Uint8Array, at: number): bigint {
  return new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(at, true);
}

function deriveSecrets(seed: bigint): bigint[] {
  let state = seed;
  return Array.from({ length: 8 }, () => {
    state = (state + 0x9e3779b97f4a7c15n) & MASK;
    let mixed = state;
    mixed = ((mixed ^ (mixed >> 30n)) * 0xbf58476d1ce4e5b9n) & MASK;
    mixed = ((mixed ^ (mixed >> 27n)) * 0x94d049bb133111ebn) & MASK;
    return mixed ^ (mixed >> 31n);
  });
}

export function referenceHash(key: Uint8Array, seed: bigint): [low: bigint, high: bigint] {
  const secret = deriveSecrets(seed);
  const length = BigInt(key.length);
  let a = secret[0];
  let b = secret[1];
  const round = (first: bigint, second: bigint): void => {
    const nextA = foldedProduct(first ^ a, second ^ secret[2]);
    b = foldedProduct(second ^ b, first ^ secret[3]);
    a = nextA;
  };
  if (key.length < 16) {
    const padded = new Uint8Array(16);
    padded.set(key);
    round(wordAt(padded, 0), wordAt(padded, 8));
  } else {
    const last = key.length - 16;
    for (let at = 0; at < last; at += 16) round(wordAt(key, at), wordAt(key, at + 8));
    round(wordAt(key, last), wordAt(key, last + 8));
  }
  return [
    foldedProduct(a ^ secret[4], b ^ secret[5] ^ length),
    foldedProduct(a ^ secret[6] ^ length, b ^ secret[7]),
  ];
}

export function referencePlace(key: Uint8Array, seed: bigint, layout: Layout): KeyPlace {
  const [low, high] = referenceHash(key, seed);
  const buckets = BigInt(layout.bucketsPerShard);
  const bucketA = Number(((low >> 32n) * buckets) >> 32n);
  let bucketB = Number(((high >> 32n) * buckets) >> 32n);
  if (bucketB === bucketA) bucketB = (bucketA + 1) % layout.bucketsPerShard;
  return {
    shard: Number((high & 0xffffn) % BigInt(layout.shardCount)),
    bucketA,
    bucketB,
    tag: Number(BigInt.asIntN(32, low)),
  };
}

export function referenceContent(key: Uint8Array, blockBytes: number): Uint8Array {
  const [keyHash] = referenceHash(key, 0n);
  const words = new BigUint64Array(blockBytes / 8);
  for (let i = 0; i < words.length; i++) {
    const counter = (keyHash + BigInt(i + 1) * 0x6a09e667f3bcc909n) & MASK;
    words[i] = foldedProduct(counter, counter ^ 0xbb67ae8584caa73bn);
  }
  return new Uint8Array(words.buffer);
}

export function referenceChecksum(block: Uint8Array): bigint {
  const secret = [0x3c6ef372fe94f82bn, 0xa54ff53a5f1d36f1n, 0x510e527fade682d1n, 0x9b05688c2b3e6c1fn];
  const lane = [...secret].reverse();
  for (let at = 0; at < block.length; at += 64) {
    for (let i = 0; i < 4; i++) {
      const pair = at + 16 * i;
      lane[i] = foldedProduct(wordAt(block, pair) ^ lane[i], wordAt(block, pair + 8) ^ secret[i]);
    }
  }
  const length = BigInt(block.length);
  const left = foldedProduct(lane[0] ^ 0x6a09e667f3bcc909n, lane[1] ^ length);
  const right = foldedProduct(lane[2] ^ 0xbb67ae8584caa73bn, lane[3] ^ length);
  return foldedProduct(left ^ 0x6a09e667f3bcc909n, right ^ 0xbb67ae8584caa73bn);
}
