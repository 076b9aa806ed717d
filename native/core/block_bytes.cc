// Bytes of blocks, see block_bytes.h. Stores go past the cache: a block is larger than what a core wants to keep, and a
// store that first reads its line from memory costs a third of the bandwidth.

#include "core/block_bytes.h"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#define KVPEER_AVX2 __attribute__((target("avx2")))
#endif

#include "core/hash.h"

namespace kvpeer {
namespace {

constexpr uint8_t kPoison = 0xa5;
constexpr size_t kStretchBytes = 4096;

// Odd numbers without structure (fractional parts of square roots of primes).
constexpr uint64_t kFillStep = 0x6a09e667f3bcc909;
constexpr uint64_t kFillTwist = 0xbb67ae8584caa73b;
constexpr uint64_t kLaneSecret[4] = {0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1, 0x510e527fade682d1, 0x9b05688c2b3e6c1f};

// Folded product: both halves of a * b, xored.
inline uint64_t foldedProduct(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// The two words of one step of the content.
struct FillPair {
  uint64_t first;
  uint64_t second;
};

inline FillPair fillPair(uint64_t counter) {
  const auto product = static_cast<unsigned __int128>(counter) * (counter ^ kFillTwist);
  const auto high = static_cast<uint64_t>(product >> 64);
  return {static_cast<uint64_t>(product) ^ high, high ^ counter};
}

inline void storePast(uint64_t* at, uint64_t word) {
#if defined(__x86_64__)
  _mm_stream_si64(reinterpret_cast<long long*>(at), static_cast<long long>(word));
#else
  *at = word;
#endif
}

// Streaming stores are not ordered by later atomic stores: whoever publishes the block must see them done.
inline void finishStores() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

#if defined(__x86_64__)
KVPEER_AVX2 void copyAvx2(uint8_t* target, const uint8_t* source, size_t bytes) {
  for (size_t at = 0; at < bytes; at += 128) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + at));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + at + 32));
    const __m256i c = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + at + 64));
    const __m256i d = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + at + 96));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(target + at), a);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(target + at + 32), b);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(target + at + 64), c);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(target + at + 96), d);
  }
}

KVPEER_AVX2 void poisonAvx2(uint8_t* target, size_t bytes) {
  const __m256i poison = _mm256_set1_epi8(static_cast<char>(kPoison));
  for (size_t at = 0; at < bytes; at += 32) _mm256_stream_si256(reinterpret_cast<__m256i*>(target + at), poison);
}
#endif

}  // namespace

bool hasAvx2() {
#if defined(__x86_64__)
  static const bool supported = __builtin_cpu_supports("avx2") != 0;
  return supported;
#else
  return false;
#endif
}

void copyBlock(uint8_t* target, const uint8_t* source, size_t bytes) {
#if defined(__x86_64__)
  if (hasAvx2()) {
    copyAvx2(target, source, bytes);
    return finishStores();
  }
#endif
  memcpy(target, source, bytes);
}

void poisonBlock(uint8_t* target, size_t bytes) {
#if defined(__x86_64__)
  if (hasAvx2()) {
    poisonAvx2(target, bytes);
    return finishStores();
  }
#endif
  memset(target, kPoison, bytes);
}

void fillBlock(uint8_t* target, size_t bytes, uint64_t keyHash) {
  auto* words = reinterpret_cast<uint64_t*>(target);
  const size_t count = bytes / sizeof(uint64_t);
  uint64_t counter = keyHash;
  for (size_t index = 0; index < count; index += 2) {
    counter += kFillStep;
    const FillPair pair = fillPair(counter);
    storePast(words + index, pair.first);
    storePast(words + index + 1, pair.second);
  }
  finishStores();
}

bool isFilledBlock(const uint8_t* block, size_t bytes, uint64_t keyHash) {
  uint64_t counter = keyHash;
  for (size_t stretch = 0; stretch < bytes; stretch += kStretchBytes) {
    uint64_t difference = 0;
    for (size_t at = stretch; at < stretch + kStretchBytes; at += 2 * sizeof(uint64_t)) {
      counter += kFillStep;
      const FillPair pair = fillPair(counter);
      difference |= (loadWord(block + at) ^ pair.first) | (loadWord(block + at + sizeof(uint64_t)) ^ pair.second);
    }
    if (difference != 0) return false;
  }
  return true;
}

uint64_t checksumBlock(const uint8_t* block, size_t bytes) {
  uint64_t lane[4] = {kLaneSecret[3], kLaneSecret[2], kLaneSecret[1], kLaneSecret[0]};
  for (size_t at = 0; at < bytes; at += 64) {
    for (size_t index = 0; index < 4; ++index) {
      const uint8_t* pair = block + at + 16 * index;
      lane[index] = foldedProduct(loadWord(pair) ^ lane[index], loadWord(pair + 8) ^ kLaneSecret[index]);
    }
  }
  const uint64_t left = foldedProduct(lane[0] ^ kFillStep, lane[1] ^ bytes);
  const uint64_t right = foldedProduct(lane[2] ^ kFillTwist, lane[3] ^ bytes);
  return foldedProduct(left ^ kFillStep, right ^ kFillTwist);
}

}  // namespace kvpeer
