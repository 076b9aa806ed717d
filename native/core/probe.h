// Looking keys up in the index: many at once, in three overlapping stages, so that their cache misses overlap too.
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

enum class Found : uint8_t { kNothing, kPinned, kReady, kPending };

struct ProbeResult {
  Found kind = Found::kNothing;
  uint32_t slot = 0;
  uint16_t generation = 0;
};

inline bool keyEquals(const uint8_t* mine, const uint8_t* other, uint32_t bytes) {
  if (bytes < 8) return memcmp(mine, other, bytes) == 0;
  // Whole words, the last one overlapping: no branch per byte.
  uint64_t difference = loadWord(mine + bytes - 8) ^ loadWord(other + bytes - 8);
  for (uint32_t at = 0; at + 8 < bytes; at += 8) difference |= loadWord(mine + at) ^ loadWord(other + at);
  return difference == 0;
}

// Bit i: entry i of the bucket shows this tag. Entries change under the reader; a torn one is sorted out by the compare
// of the key.
inline uint32_t matchingEntries(const uint32_t* bucket, uint32_t tag) {
#if defined(__SSE2__)
  const __m128i wanted = _mm_set1_epi32(static_cast<int>(tag));
  const auto* lines = reinterpret_cast<const __m128i*>(bucket);
  uint32_t entries = 0;
  for (int pair = 0; pair < 4; ++pair) {
    const __m128i equal = _mm_cmpeq_epi32(_mm_load_si128(lines + pair), wanted);
    const auto words = static_cast<uint32_t>(_mm_movemask_ps(_mm_castsi128_ps(equal)));
    // Words 0 and 2 of a pair of entries are tags.
    entries |= ((words & 1) | (words >> 1 & 2)) << (2 * pair);
  }
  return entries;
#else
  uint32_t entries = 0;
  for (size_t entry = 0; entry < kBucketEntries; ++entry) {
    entries |= uint32_t{__atomic_load_n(bucket + 2 * entry, __ATOMIC_RELAXED) == tag} << entry;
  }
  return entries;
#endif
}

// Entries of both buckets that show the key's tag: bits 0-7 bucket A, 8-15 bucket B.
inline uint32_t candidatesOf(const ControlMap& control, const KeyPlace& place) {
  return matchingEntries(control.bucket(place.shard, place.bucketA), place.tag) |
         matchingEntries(control.bucket(place.shard, place.bucketB), place.tag) << kBucketEntries;
}

// The slot that a candidate entry names, or numBlocks when it is empty (or no slot at all).
inline uint32_t slotOfEntry(const ControlMap& control, const KeyPlace& place, uint32_t entry) {
  const uint32_t* bucket = control.bucket(place.shard, entry < kBucketEntries ? place.bucketA : place.bucketB);
  const uint32_t slot =
      __atomic_load_n(bucket + 2 * (entry % kBucketEntries) + 1, __ATOMIC_ACQUIRE) - 1;
  return std::min(slot, control.numBlocks);
}

// Whether this slot holds the key, and in which phase. With `pin` a READY slot is pinned before its key is compared
// (a pinned slot cannot change its key); otherwise the key counts only if phase and generation stayed the same.
inline bool lookAtSlot(const ControlMap& control, uint32_t slot, const uint8_t* key, bool pin, ProbeResult* result) {
  const uint8_t* record = control.record(slot);
  uint32_t* word = control.state(slot);
  uint32_t state = __atomic_load_n(word, __ATOMIC_ACQUIRE);
  const uint32_t phase = phaseOf(state);
  if (phase == kReady && pin) {
    if (!tryPin(word, state)) return false;
    if (keyEquals(record + kRecordKey, key, control.keyBytes)) {
      *result = {Found::kPinned, slot, generationOf(state)};
      return true;
    }
    unpin(word);
    return false;
  }
  if (phase != kReady && phase != kWriting) return false;
  if (!keyEquals(record + kRecordKey, key, control.keyBytes)) return false;
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  if (identityOf(__atomic_load_n(word, __ATOMIC_RELAXED)) != identityOf(state)) return false;
  *result = {phase == kReady ? Found::kReady : Found::kPending, slot, generationOf(state)};
  return true;
}

inline ProbeResult lookAtCandidates(const ControlMap& control, const KeyPlace& place, uint32_t candidates,
                                    const uint8_t* key, bool pin) {
  ProbeResult result;
  for (; candidates != 0; candidates &= candidates - 1) {
    const uint32_t slot = slotOfEntry(control, place, static_cast<uint32_t>(__builtin_ctz(candidates)));
    if (slot < control.numBlocks && lookAtSlot(control, slot, key, pin, &result)) return result;
  }
  return result;
}

// Looks up the positions first .. end - 1 for which `wants(position)` holds (and whose key belongs to `onlyShard`, unless
// that is negative), in order. `settle(position, look)` gets a function that does the last stage: look(pin).
template <typename Wants, typename Settle>
void probeKeys(const ControlMap& control, const Extent& extent, uint32_t first, uint32_t end, int32_t onlyShard,
               Wants wants, Settle settle) {
  // Distance between two stages, in keys: about as many cache misses as a core keeps open.
  constexpr uint32_t kDistance = 8;
  constexpr uint32_t kWindow = 32;
  struct Flight {
    KeyPlace place;
    uint32_t candidates;
    bool isWanted;
  };
  Flight flights[kWindow];
  for (uint32_t step = first; step < end + 2 * kDistance; ++step) {
    if (step < end) {
      Flight& flight = flights[step % kWindow];
      flight.isWanted = wants(step);
      if (flight.isWanted) {
        flight.place = control.placeOfKey(extent.key(step));
        flight.isWanted = onlyShard < 0 || flight.place.shard == static_cast<uint32_t>(onlyShard);
        if (flight.isWanted) {
          __builtin_prefetch(control.bucket(flight.place.shard, flight.place.bucketA));
          __builtin_prefetch(control.bucket(flight.place.shard, flight.place.bucketB));
        }
      }
    }
    if (step >= first + kDistance && step - kDistance < end) {
      Flight& flight = flights[(step - kDistance) % kWindow];
      if (flight.isWanted) {
        flight.candidates = candidatesOf(control, flight.place);
        if (flight.candidates != 0) {
          const uint32_t slot =
              slotOfEntry(control, flight.place, static_cast<uint32_t>(__builtin_ctz(flight.candidates)));
          if (slot < control.numBlocks) __builtin_prefetch(control.record(slot), 1);
        }
      }
    }
    if (step >= first + 2 * kDistance) {
      const uint32_t position = step - 2 * kDistance;
      const Flight& flight = flights[position % kWindow];
      if (!flight.isWanted) continue;
      settle(position, [&](bool pin) {
        return lookAtCandidates(control, flight.place, flight.candidates, extent.key(position), pin);
      });
    }
  }
}

}  // namespace kvpeer
