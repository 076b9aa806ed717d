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
  return Array.from({ length: 10 }, () => {
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
  const product = (bytes: Uint8Array, at: number, pair: number): bigint =>
    ((wordAt(bytes, at) + secret[2 * pair]) & MASK) * ((wordAt(bytes, at + 8) + secret[2 * pair + 1]) & MASK);
  let sum = 0n;
  if (key.length < 16) {
    const padded = new Uint8Array(16);
    padded.set(key);
    sum = product(padded, 0, 0);
  } else {
    let at = 0;
    for (; at + 16 < key.length; at += 16) sum += product(key, at, at / 16);
    sum += product(key, key.length - 16, at / 16);
  }
  const low = sum & MASK;
  const high = (sum >> 64n) & MASK;
  const end = (low ^ secret[8]) * (high ^ secret[9] ^ length);
  return [(end & MASK) ^ (end >> 64n), end >> 64n];
}

export function referencePlace(key: Uint8Array, seed: bigint, layout: Layout): KeyPlace {
  const [low, high] = referenceHash(key, seed);
  const buckets = BigInt(layout.bucketsPerShard);
  const bucketA = Number(((low & 0xffff_ffffn) * buckets) >> 32n);
  const page = Math.floor(bucketA / 64) * 64;
  const pageCount = Math.min(64, layout.bucketsPerShard);
  const other = (high & 0xffff_ffffn) ^ (low >> 32n);
  let bucketB = page + Number((other * BigInt(pageCount)) >> 32n);
  if (bucketB === bucketA) bucketB = page + ((bucketA - page + 1) % pageCount);
  return {
    shard: Number((high & 0xffffn) % BigInt(layout.shardCount)),
    bucketA,
    bucketB,
    tag: Number(BigInt.asIntN(32, low >> 32n)),
  };
}

export function referenceContent(key: Uint8Array, blockBytes: number): Uint8Array {
  const [keyHash] = referenceHash(key, 0n);
  const words = new BigUint64Array(blockBytes / 8);
  for (let i = 0; i < words.length; i += 2) {
    const counter = (keyHash + BigInt(i / 2 + 1) * 0x6a09e667f3bcc909n) & MASK;
    words[i] = foldedProduct(counter, counter ^ 0xbb67ae8584caa73bn);
    words[i + 1] = ((counter * (counter ^ 0xbb67ae8584caa73bn)) >> 64n) ^ counter;
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
