// The hash of keys: 128 bits over all bytes of a key, under secrets derived from a 64-bit seed.
//
// First NH, the universal hash of UMAC (Black et al., 1999): the sum of 64 x 64 -> 128 bit products, one per 16 key
// bytes, each with secrets of its own. Two keys of the same length meet with probability 2^-64, whoever chose them, as
// long as the seed is unknown; and the products do not wait for each other. Then one more product spreads the sum's bits
// over the result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kvpeer {

constexpr uint32_t kPageBuckets = 64;
constexpr size_t kMaxHashedBytes = 64;

struct HashSecrets {
  // A pair per 16 bytes of key, then one for the end.
  uint64_t word[kMaxHashedBytes / 8 + 2];
};

// Every bit of `low` and the lower half of `high` change with every bit of the key (flipping one key bit flips each of
// them half the time); the upper half of `high` is the top of a product and uneven: nothing is taken from there.
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

// At most kMaxHashedBytes bytes.
inline Hash128 hashBytes(const uint8_t* key, size_t bytes, const HashSecrets& secrets) {
  const uint64_t* secret = secrets.word;
  const auto product = [](const uint8_t* pair, const uint64_t* with) {
    return static_cast<unsigned __int128>(loadWord(pair) + with[0]) * (loadWord(pair + 8) + with[1]);
  };
  unsigned __int128 sum = 0;
  if (bytes < 16) {
    uint8_t padded[16] = {};
    memcpy(padded, key, bytes);
    sum = product(padded, secret);
  } else {
    // Whole pairs, then the last 16 bytes, which may overlap what was read before.
    size_t at = 0;
    for (; at + 16 < bytes; at += 16) sum += product(key + at, secret + at / 8);
    sum += product(key + bytes - 16, secret + at / 8);
  }
  const auto low = static_cast<uint64_t>(sum);
  const auto high = static_cast<uint64_t>(sum >> 64);
  const uint64_t* finish = secret + kMaxHashedBytes / 8;
  const auto end = static_cast<unsigned __int128>(low ^ finish[0]) * (high ^ finish[1] ^ bytes);
  const auto upper = static_cast<uint64_t>(end >> 64);
  return {static_cast<uint64_t>(end) ^ upper, upper};
}

// `value` scaled to 0 .. count - 1, for any count.
inline uint32_t reduceRange(uint32_t value, uint32_t count) {
  return static_cast<uint32_t>((static_cast<uint64_t>(value) * count) >> 32);
}

// Both buckets of a key lie in the same 4 KiB page of the index (64 buckets): one address translation for the two. In
// 40 million insertions at a load of one half that filled no pair, as little as pairs from the whole index.
//
// The first bucket comes from the lower half of `low` (from its upper bits, as many as it takes), the tag from the upper
// half; the shard from bits 0-15 of `high`, the second bucket from bits 26-31, made even by the tag. The lowest bits of
// `low` and `high` must not meet in one place: together they show the lowest bits of a product, which keys that differ
// little may share.
// `bucketCount` is at most 64 or a multiple of it; `shardReciprocal` is 2^32 / shardCount rounded up,
// exact for the 16 bits that choose the shard.
inline KeyPlace placeOf(Hash128 hash, uint32_t bucketCount, uint32_t shardCount, uint64_t shardReciprocal) {
  KeyPlace place;
  const auto chooser = static_cast<uint32_t>(hash.high & 0xffff);
  place.shard = chooser - static_cast<uint32_t>((chooser * shardReciprocal) >> 32) * shardCount;
  place.tag = static_cast<uint32_t>(hash.low >> 32);
  place.bucketA = reduceRange(static_cast<uint32_t>(hash.low), bucketCount);
  const uint32_t pageCount = bucketCount < kPageBuckets ? bucketCount : kPageBuckets;
  const uint32_t inPage = place.bucketA % kPageBuckets;
  uint32_t other = reduceRange(static_cast<uint32_t>(hash.high) ^ place.tag, pageCount);
  if (other == inPage) other = inPage + 1 == pageCount ? 0 : inPage + 1;
  place.bucketB = place.bucketA - inPage + other;
  return place;
}

}  // namespace kvpeer
