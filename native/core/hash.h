// The hash of keys: 128 bits over all bytes of a key, under secrets derived from a 64-bit seed.
//
// Two lanes of folded 64 x 64 -> 128 bit products, 16 key bytes per round. Both factors of every product hold a secret,
// so a peer that chooses keys cannot make a product vanish (a zero factor would) without knowing the seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kvpeer {

struct HashSecrets {
  uint64_t word[8];
};

struct Hash128 {
  uint64_t low;
  uint64_t high;
};

// Where a key lives: its shard, two different buckets of it, and the tag that its index entry shows.
struct KeyPlace {
  uint32_t shard;
  uint32_t bucketA;
  uint32_t bucketB;
  uint32_t tag;
};

// Folded product: both halves of a * b, xored.
inline uint64_t foldedProduct(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

inline uint64_t loadWord(const uint8_t* at) {
  uint64_t word;
  memcpy(&word, at, sizeof word);
  return word;
}

// SplitMix64, the usual generator for turning one seed into several independent words.
inline HashSecrets deriveSecrets(uint64_t seed) {
  HashSecrets secrets;
  for (uint64_t& word : secrets.word) {
    seed += 0x9e3779b97f4a7c15;
    uint64_t mixed = seed;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    word = mixed ^ (mixed >> 31);
  }
  return secrets;
}

inline Hash128 hashBytes(const uint8_t* key, size_t bytes, const HashSecrets& secrets) {
  const uint64_t* secret = secrets.word;
  uint64_t a = secret[0];
  uint64_t b = secret[1];
  const auto round = [&](uint64_t first, uint64_t second) {
    a = foldedProduct(first ^ a, second ^ secret[2]);
    b = foldedProduct(second ^ b, first ^ secret[3]);
  };
  if (bytes < 16) {
    uint8_t padded[16] = {};
    memcpy(padded, key, bytes);
    round(loadWord(padded), loadWord(padded + 8));
  } else {
    // Whole rounds, then the last 16 bytes, which may overlap what was read before.
    const uint8_t* last = key + bytes - 16;
    for (const uint8_t* at = key; at < last; at += 16) round(loadWord(at), loadWord(at + 8));
    round(loadWord(last), loadWord(last + 8));
  }
  return {foldedProduct(a ^ secret[4], b ^ secret[5] ^ bytes), foldedProduct(a ^ secret[6] ^ bytes, b ^ secret[7])};
}

// `value` scaled to 0 .. count - 1, for any count.
inline uint32_t reduceRange(uint32_t value, uint32_t count) {
  return static_cast<uint32_t>((static_cast<uint64_t>(value) * count) >> 32);
}

// `shardReciprocal` is 2^32 / shardCount rounded up: exact for the 16 bits that choose the shard.
inline KeyPlace placeOf(Hash128 hash, uint32_t bucketCount, uint32_t shardCount, uint64_t shardReciprocal) {
  KeyPlace place;
  const auto chooser = static_cast<uint32_t>(hash.high & 0xffff);
  place.shard = chooser - static_cast<uint32_t>((chooser * shardReciprocal) >> 32) * shardCount;
  place.tag = static_cast<uint32_t>(hash.low);
  place.bucketA = reduceRange(static_cast<uint32_t>(hash.low >> 32), bucketCount);
  place.bucketB = reduceRange(static_cast<uint32_t>(hash.high >> 32), bucketCount);
  if (place.bucketB == place.bucketA) {
    place.bucketB = place.bucketA + 1 == bucketCount ? 0 : place.bucketA + 1;
  }
  return place;
}

}  // namespace kvpeer
