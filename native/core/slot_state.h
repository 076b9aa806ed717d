// The slot's state word (src/shared/slot-state.ts has the picture) and the two things any thread may do to it.
#pragma once

#include <cstdint>

namespace kvpeer {

constexpr uint32_t kPinsMask = 0xfff;
constexpr uint32_t kMaxPins = 4095;
constexpr uint32_t kVisitedOne = 1u << 12;
constexpr int kPinTries = 8;

enum Phase : uint32_t { kFree = 0, kWriting = 1, kReady = 2, kQuarantined = 3 };

inline uint32_t phaseOf(uint32_t state) { return state >> 30; }
inline uint32_t pinsOf(uint32_t state) { return state & kPinsMask; }
inline uint16_t generationOf(uint32_t state) { return static_cast<uint16_t>(state >> 14); }
// Phase and generation: what must not have changed while a record was read without a pin.
inline uint32_t identityOf(uint32_t state) { return state >> 14; }

// One pin on a slot that is READY; `state` is its word as loaded and afterwards the word that was replaced. False when
// the slot is not READY, has all its pins, or changed under every try.
inline bool tryPin(uint32_t* word, uint32_t& state) {
  for (int tries = 0; tries < kPinTries; ++tries) {
    if (phaseOf(state) != kReady || pinsOf(state) == kMaxPins) return false;
    if (__atomic_compare_exchange_n(word, &state, (state + 1) | kVisitedOne, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_ACQUIRE)) {
      return true;
    }
  }
  return false;
}

// False when the slot had no pin; its word is then as before.
inline bool unpin(uint32_t* word) {
  if (pinsOf(__atomic_fetch_sub(word, 1, __ATOMIC_RELEASE)) != 0) return true;
  __atomic_fetch_add(word, 1, __ATOMIC_RELEASE);
  return false;
}

}  // namespace kvpeer
