// Looking keys up in the index: many at once, in stages, so that their cache misses overlap.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "core/control.h"
#include "core/slot_state.h"

namespace kvpeer {

inline bool isSkipped(const Extent& extent, uint32_t position) {
  return __atomic_load_n(extent.statuses + position, __ATOMIC_RELAXED) == kStatusSkip;
}

enum class Found : uint8_t { kNothing, kPinned, kReady, kPending };

struct ProbeResult {
  Found kind = Found::kNothing;
  uint32_t slot = 0;
  uint16_t generation = 0;
};

// The length of keys, which most nodes share with many others: known to the compiler, hashing and comparing lose their
// loops. 36: SHA-256 and four bytes of a group number, 20: XXH3-128 and the same; 0: any length.
template <uint32_t kKeyBytes>
constexpr uint32_t keyLength(uint32_t any) {
  return kKeyBytes != 0 ? kKeyBytes : any;
}

inline bool keyEquals(const uint8_t* mine, const uint8_t* other, uint32_t bytes) {
  if (bytes < 16) return memcmp(mine, other, bytes) == 0;
  // Whole stretches, the last one overlapping: no branch per byte.
#if defined(__SSE2__)
  const auto stretch = [&](uint32_t at) {
    const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(mine + at));
    return _mm_xor_si128(a, _mm_loadu_si128(reinterpret_cast<const __m128i*>(other + at)));
  };
  __m128i difference = stretch(bytes - 16);
  for (uint32_t at = 0; at + 16 < bytes; at += 16) difference = _mm_or_si128(difference, stretch(at));
  return _mm_movemask_epi8(_mm_cmpeq_epi8(difference, _mm_setzero_si128())) == 0xffff;
#else
  uint64_t difference = loadWord(mine + bytes - 8) ^ loadWord(other + bytes - 8);
  for (uint32_t at = 0; at + 8 < bytes; at += 8) difference |= loadWord(mine + at) ^ loadWord(other + at);
  return difference == 0;
#endif
}

// Bits 0-7: entries of the first bucket that show this tag; 8-15: of the second. Entries change under the reader; a torn
// one is sorted out by the compare of the key.
inline uint32_t matchingEntries(const uint32_t* first, const uint32_t* second, uint32_t tag) {
#if defined(__SSE2__)
  const __m128i wanted = _mm_set1_epi32(static_cast<int>(tag));
  // All ones per entry among four whose tag is the wanted one. Words 0 and 2 of 16 bytes are tags.
  const auto four = [&](const uint32_t* entries) {
    const auto* at = reinterpret_cast<const float*>(entries);
    const __m128 tags = _mm_shuffle_ps(_mm_load_ps(at), _mm_load_ps(at + 4), _MM_SHUFFLE(2, 0, 2, 0));
    return _mm_cmpeq_epi32(_mm_castps_si128(tags), wanted);
  };
  const __m128i a = _mm_packs_epi32(four(first), four(first + 8));
  const __m128i b = _mm_packs_epi32(four(second), four(second + 8));
  return static_cast<uint32_t>(_mm_movemask_epi8(_mm_packs_epi16(a, b)));
#else
  uint32_t entries = 0;
  for (size_t entry = 0; entry < kBucketEntries; ++entry) {
    entries |= uint32_t{__atomic_load_n(first + 2 * entry, __ATOMIC_RELAXED) == tag} << entry;
    entries |= uint32_t{__atomic_load_n(second + 2 * entry, __ATOMIC_RELAXED) == tag} << (entry + kBucketEntries);
  }
  return entries;
#endif
}

// Whether this slot holds the key, and in which phase. With `pin` a READY slot is pinned before its key is compared
// (a pinned slot cannot change its key); otherwise the key counts only if phase and generation stayed the same.
template <uint32_t kKeyBytes>
inline bool lookAtSlot(SlotRecords records, uint32_t slot, const uint8_t* key, bool pin, ProbeResult* result) {
  const uint32_t keyBytes = keyLength<kKeyBytes>(records.keyBytes);
  uint32_t* word = records.state(slot);
  uint32_t state = __atomic_load_n(word, __ATOMIC_ACQUIRE);
  const uint32_t phase = phaseOf(state);
  if (phase == kReady && pin) {
    if (!tryPin(word, state)) return false;
    if (keyEquals(records.key(slot), key, keyBytes)) {
      *result = {Found::kPinned, slot, generationOf(state)};
      return true;
    }
    unpin(word);
    return false;
  }
  if (phase != kReady && phase != kWriting) return false;
  if (!keyEquals(records.key(slot), key, keyBytes)) return false;
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  if (identityOf(__atomic_load_n(word, __ATOMIC_RELAXED)) != identityOf(state)) return false;
  *result = {phase == kReady ? Found::kReady : Found::kPending, slot, generationOf(state)};
  return true;
}

// One key on its way through the stages.
struct Flight {
  const uint32_t* buckets[2];
  uint32_t tag;
  uint32_t position;
  // Entries that show the tag, as matchingEntries() says them.
  uint32_t candidates;
  // The slot of the first candidate, as slotOf() says it.
  uint32_t firstSlot;

  // The slot that a candidate names; the count of slots when the entry is empty (or no slot at all).
  uint32_t slotOf(uint32_t slotCount, uint32_t entry) const {
    // By index, not by branch: which bucket it is nobody can predict.
    const uint32_t* bucket = buckets[entry / kBucketEntries];
    const uint32_t slot = __atomic_load_n(bucket + 2 * (entry % kBucketEntries) + 1, __ATOMIC_ACQUIRE) - 1;
    return std::min(slot, slotCount);
  }
};

// Keys that pass a stage together: their buckets and records are no more cache misses than a core keeps open.
struct FlightGroup {
  static constexpr uint32_t kSize = 6;
  uint32_t count = 0;
  Flight flights[kSize];
};

// What hashing a key needs of a control map, as a copy: stores into the flights may alias anything whose address is known.
struct KeyPlaces {
  explicit KeyPlaces(const ControlMap& control)
      : index(control.base + control.indexOffset),
        shardReciprocal(control.shardReciprocal),
        keyBytes(control.keyBytes),
        shardCount(control.shardCount),
        bucketsPerShard(control.bucketsPerShard),
        secrets(control.secrets) {}

  const uint32_t* bucket(uint32_t shard, uint32_t number) const {
    return reinterpret_cast<const uint32_t*>(index + (uint64_t{shard} * bucketsPerShard + number) * kBucketBytes);
  }

  const uint8_t* const index;
  const uint64_t shardReciprocal;
  const uint32_t keyBytes;
  const uint32_t shardCount;
  const uint32_t bucketsPerShard;
  const HashSecrets secrets;
};

// Stage 1: hash the keys, ask for both their buckets.
template <uint32_t kKeyBytes>
inline void startFlights(const KeyPlaces& places, const Extent& extent, uint32_t first, uint32_t end, int32_t onlyShard,
                         FlightGroup* group) {
  uint32_t count = 0;
  for (uint32_t position = first; position < end; ++position) {
    if (isSkipped(extent, position)) continue;
    const Hash128 hash = hashBytes(extent.key(position), keyLength<kKeyBytes>(places.keyBytes), places.secrets);
    const KeyPlace place = placeOf(hash, places.bucketsPerShard, places.shardCount, places.shardReciprocal);
    if (onlyShard >= 0 && place.shard != static_cast<uint32_t>(onlyShard)) continue;
    Flight& flight = group->flights[count];
    count += 1;
    flight.buckets[0] = places.bucket(place.shard, place.bucketA);
    flight.buckets[1] = places.bucket(place.shard, place.bucketB);
    flight.tag = place.tag;
    flight.position = position;
    __builtin_prefetch(flight.buckets[0]);
    __builtin_prefetch(flight.buckets[1]);
  }
  group->count = count;
}

// Stage 2: compare the tags, ask for the first candidate's record.
inline void findCandidates(SlotRecords records, FlightGroup* group) {
  const uint32_t count = group->count;
  for (uint32_t index = 0; index < count; ++index) {
    Flight& flight = group->flights[index];
    const uint32_t candidates = matchingEntries(flight.buckets[0], flight.buckets[1], flight.tag);
    flight.candidates = candidates;
    if (candidates == 0) continue;
    const uint32_t slot = flight.slotOf(records.count, static_cast<uint32_t>(__builtin_ctz(candidates)));
    flight.firstSlot = slot;
    if (slot < records.count) __builtin_prefetch(records.record(slot), 1);
  }
}

// Stage 3: pin and compare.
template <uint32_t kKeyBytes>
inline ProbeResult lookAtCandidates(SlotRecords records, const Flight& flight, const uint8_t* key, bool pin) {
  ProbeResult result;
  uint32_t slot = flight.firstSlot;
  uint32_t candidates = flight.candidates;
  while (candidates != 0) {
    if (slot < records.count && lookAtSlot<kKeyBytes>(records, slot, key, pin, &result)) return result;
    candidates &= candidates - 1;
    if (candidates != 0) slot = flight.slotOf(records.count, static_cast<uint32_t>(__builtin_ctz(candidates)));
  }
  return result;
}

// Looks up the positions first .. end - 1 that main did not mark Skip (and whose key belongs to `onlyShard`, unless that
// is negative), in order. `settle(position, look)` gets a function that does the last stage: look(pin).
//
// The stages run in groups, one group ahead of each other, instead of key by key: a pin is a locked instruction, which
// no later load passes, so between two pins nothing overlaps. Inside a group of hashes or compares everything does.
template <uint32_t kKeyBytes, typename Settle>
void probeKeys(const ControlMap& control, const Extent& extent, uint32_t first, uint32_t end, int32_t onlyShard,
               Settle settle) {
  const SlotRecords records = control.records();
  const KeyPlaces places(control);
  const uint8_t* const keys = extent.keys;
  const uint64_t stride = extent.keyStride;
  FlightGroup groups[3];
  FlightGroup* starting = &groups[0];
  FlightGroup* comparing = &groups[1];
  FlightGroup* settling = &groups[2];
  uint32_t next = first;
  while (next < end || starting->count + comparing->count > 0) {
    FlightGroup* free = settling;
    settling = comparing;
    comparing = starting;
    starting = free;
    const uint32_t stop = std::min(end, next + FlightGroup::kSize);
    startFlights<kKeyBytes>(places, extent, next, stop, onlyShard, starting);
    next = stop;
    findCandidates(records, comparing);
    for (uint32_t index = 0; index < settling->count; ++index) {
      const Flight& flight = settling->flights[index];
      settle(flight.position, [&](bool pin) {
        return lookAtCandidates<kKeyBytes>(records, flight, keys + flight.position * stride, pin);
      });
    }
  }
}

}  // namespace kvpeer
