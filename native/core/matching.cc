// Match, release and resolve, see matching.h.

#include "core/matching.h"

#include "core/probe.h"

namespace kvpeer {
namespace {

// The statuses are the last thing written of a position: what reads Pinned has its slot.
void writePosition(const Extent& extent, uint32_t position, int32_t slot, uint16_t generation, PositionStatus status) {
  __atomic_store_n(extent.slots + position, slot, __ATOMIC_RELAXED);
  __atomic_store_n(extent.generations + position, generation, __ATOMIC_RELAXED);
  __atomic_store_n(extent.statuses + position, status, __ATOMIC_RELEASE);
}

void writeMiss(const Extent& extent, uint32_t position) { writePosition(extent, position, -1, 0, kStatusMiss); }

bool areDestinationsGood(const Extent& extent, NumberSet& numbers) {
  numbers.clear(extent.count);
  for (uint32_t position = 0; position < extent.count; ++position) {
    const uint32_t index = __atomic_load_n(extent.indexes + position, __ATOMIC_RELAXED);
    const auto isSame = [](uint32_t) { return true; };
    if (index >= extent.peerNumBlocks || numbers.findOrInsert(index, position, isSame)) return false;
  }
  return true;
}

bool hasRepeatedKey(const ControlMap& control, const Extent& extent, NumberSet& numbers) {
  numbers.clear(extent.count);
  for (uint32_t position = 0; position < extent.count; ++position) {
    if (isSkipped(extent, position)) continue;
    const uint8_t* key = extent.key(position);
    const auto isSame = [&](uint32_t other) { return keyEquals(extent.key(other), key, control.keyBytes); };
    if (numbers.findOrInsert(hashBytes(key, control.keyBytes, control.secrets).low, position, isSame)) return true;
  }
  return false;
}

// Calls `visit(slot)` for every slot that the extent's leases have pinned; an error when a lease is no sound extent.
template <typename Visit>
const char* forEachLeasedSlot(const ControlMap& control, const Extent& extent, Visit visit) {
  for (uint32_t number = 0; number < extent.leaseCount; ++number) {
    Extent lease;
    const uint64_t unit = __atomic_load_n(extent.leases + number, __ATOMIC_RELAXED);
    const char* error = readExtent(control, unit * kExtentUnitBytes, false, &lease);
    if (error != nullptr) return error;
    for (uint32_t position = 0; position < lease.count; ++position) {
      if (__atomic_load_n(lease.statuses + position, __ATOMIC_ACQUIRE) != kStatusPinned) continue;
      const auto slot = static_cast<uint32_t>(__atomic_load_n(lease.slots + position, __ATOMIC_RELAXED));
      if (slot < control.numBlocks) visit(slot);
    }
  }
  return nullptr;
}

// Pins, as long as the limit allows: plain pins, or different slots over the leases and this extent.
class PinBudget {
 public:
  PinBudget(const ControlMap& control, const Extent& extent, SlotSet& counted)
      : counted_(counted), limit_(extent.pinLimit), isUnique_((extent.flags & kCountUnique) != 0) {
    if (!isUnique_) return;
    counted_.clear(control.numBlocks);
    error_ = forEachLeasedSlot(control, extent, [&](uint32_t slot) { counted_.insert(slot); });
  }

  const char* error() const { return error_; }
  // Once true it stays true, and the keys that follow are misses; with unique slots only new ones are.
  bool isSpent() const { return isSpent_; }
  bool mayTry() const { return isUnique_ || taken_ < limit_; }
  void spend() { isSpent_ = true; }

  // A pin was taken on the slot; false: it is one too many and must be given back.
  bool take(uint32_t slot) {
    if (isUnique_) {
      if (counted_.has(slot)) return true;
      if (counted_.size() >= limit_) return false;
      counted_.insert(slot);
    }
    taken_ += 1;
    return true;
  }

 private:
  SlotSet& counted_;
  uint32_t limit_;
  uint32_t taken_ = 0;
  bool isUnique_;
  bool isSpent_ = false;
  const char* error_ = nullptr;
};

// Counts a hit at its position; positions come in order.
void countHit(const MatchRequest& request, uint32_t position, MatchResult* result) {
  if (position == request.first + result->leadingCount) result->leadingCount += 1;
  result->hitCount += 1;
}

// The usual match: pins what is READY, and no limit can be met. `kKeyBytes`: see keyLength().
template <uint32_t kKeyBytes>
MatchResult matchFreely(const ControlMap& control, const Extent& extent, const MatchRequest& request) {
  MatchResult result;
  // A copy whose address nobody has: the stores through it do not make the compiler read it again.
  const Extent answers = extent;
  probeKeys<kKeyBytes>(control, answers, request.first, request.end, request.onlyShard,
                       [&](uint32_t position, auto look) {
    const ProbeResult found = look(true);
    if (found.kind == Found::kNothing) return writeMiss(answers, position);
    const bool isHit = found.kind == Found::kPinned;
    if (isHit) {
      countHit(request, position, &result);
    } else {
      result.pendingCount += 1;
    }
    writePosition(answers, position, static_cast<int32_t>(found.slot), found.generation,
                  isHit ? kStatusPinned : kStatusPending);
  });
  return result;
}

// Without pins, or with a limit that may be met.
MatchResult matchWithin(const ControlMap& control, const Extent& extent, const MatchRequest& request,
                        MatchScratch& scratch) {
  MatchResult result;
  const bool pins = (extent.flags & kPin) != 0;
  PinBudget budget(control, extent, scratch.leased);
  if (budget.error() != nullptr) {
    result.error = budget.error();
    return result;
  }

  const SlotRecords records = control.records();
  const auto settle = [&](uint32_t position, auto look) {
    if (pins && !budget.mayTry()) budget.spend();
    if (budget.isSpent() && !budget.mayTry()) return writeMiss(extent, position);
    const ProbeResult found = look(pins);
    switch (found.kind) {
      case Found::kPinned:
        if (!budget.take(found.slot)) {
          unpin(records.state(found.slot));
          budget.spend();
          return writeMiss(extent, position);
        }
        [[fallthrough]];
      case Found::kReady:
        countHit(request, position, &result);
        return writePosition(extent, position, static_cast<int32_t>(found.slot), found.generation,
                             pins ? kStatusPinned : kStatusFound);
      case Found::kPending:
        // Beyond the limit a key is a miss also when it is on its way: waiting for it would bring nothing.
        if (budget.isSpent()) return writeMiss(extent, position);
        result.pendingCount += 1;
        return writePosition(extent, position, static_cast<int32_t>(found.slot), found.generation, kStatusPending);
      case Found::kNothing:
        return writeMiss(extent, position);
    }
  };
  probeKeys<0>(control, extent, request.first, request.end, request.onlyShard, settle);
  return result;
}

}  // namespace

MatchResult matchKeys(const ControlMap& control, const Extent& extent, const MatchRequest& request,
                      MatchScratch& scratch) {
  MatchResult result;
  if ((extent.flags & kCheckDestinations) != 0) {
    if (extent.indexes == nullptr) {
      result.error = "the extent has no destination indexes to check";
      return result;
    }
    if (!areDestinationsGood(extent, scratch.numbers) || hasRepeatedKey(control, extent, scratch.numbers)) {
      result.outcome = kOutcomeBadDestination;
      return result;
    }
  }
  const bool isFree = (extent.flags & (kPin | kCountUnique)) == kPin && extent.pinLimit >= request.end - request.first;
  if (isFree && control.keyBytes == 36) {
    result = matchFreely<36>(control, extent, request);
  } else if (isFree && control.keyBytes == 20) {
    result = matchFreely<20>(control, extent, request);
  } else if (isFree) {
    result = matchFreely<0>(control, extent, request);
  } else {
    result = matchWithin(control, extent, request, scratch);
    if (result.error != nullptr) return result;
  }
  if (request.worker >= 0) {
    // The supervisor reads it after this thread's death: everything before is complete then.
    __atomic_fetch_or(extent.words + kRecorded, 1u << request.worker, __ATOMIC_SEQ_CST);
  }
  return result;
}

ReleaseResult releasePins(const ControlMap& control, const Extent& extent) {
  constexpr uint32_t kAhead = 8;
  const SlotRecords records = control.records();
  ReleaseResult result;
  const auto slotAt = [&](uint32_t position) {
    return static_cast<uint32_t>(__atomic_load_n(extent.slots + position, __ATOMIC_RELAXED));
  };
  for (uint32_t position = 0; position < extent.count; ++position) {
    if (position + kAhead < extent.count) {
      const uint32_t ahead = slotAt(position + kAhead);
      if (ahead < records.count) __builtin_prefetch(records.state(ahead), 1);
    }
    if (__atomic_load_n(extent.statuses + position, __ATOMIC_RELAXED) != kStatusPinned) continue;
    // First the record, then the pin: if this is cut short, a pin is lost, never given back twice.
    __atomic_store_n(extent.statuses + position, static_cast<uint8_t>(kStatusMiss), __ATOMIC_RELAXED);
    const uint32_t slot = slotAt(position);
    if (slot < records.count && unpin(records.state(slot))) {
      result.count += 1;
    } else {
      result.faults += 1;
    }
  }
  return result;
}

ResolveResult resolveByLeases(const ControlMap& control, const Extent& extent, MatchScratch& scratch) {
  ResolveResult result;
  if (extent.indexes != nullptr && !areDestinationsGood(extent, scratch.numbers)) {
    result.outcome = kOutcomeBadDestination;
    return result;
  }
  scratch.leased.clear(control.numBlocks);
  scratch.taken.clear(control.numBlocks);
  result.error = forEachLeasedSlot(control, extent, [&](uint32_t slot) { scratch.leased.insert(slot); });
  if (result.error != nullptr) return result;
  bool isRepeated = false;
  uint32_t foundCount = 0;
  probeKeys<0>(control, extent, 0, extent.count, -1, [&](uint32_t position, auto look) {
    const ProbeResult found = look(false);
    // A leased slot is READY and pinned, so it stays in the index and keeps its key.
    if (found.kind != Found::kReady || !scratch.leased.has(found.slot)) return writeMiss(extent, position);
    // One key, one slot: a slot met twice is a key given twice.
    if (!scratch.taken.insert(found.slot)) isRepeated = true;
    foundCount += 1;
    writePosition(extent, position, static_cast<int32_t>(found.slot), found.generation, kStatusFound);
  });
  if (isRepeated) {
    result.outcome = kOutcomeBadDestination;
  } else if (foundCount < extent.count) {
    result.outcome = kOutcomeNotInLease;
  }
  return result;
}

void hashKeysOf(const ControlMap& control, const Extent& extent, uint32_t first, uint32_t end, uint32_t* target) {
  for (uint32_t position = first; position < end; ++position, target += 4) {
    const KeyPlace place = control.placeOfKey(extent.key(position));
    target[0] = place.shard;
    target[1] = place.bucketA;
    target[2] = place.bucketB;
    target[3] = place.tag;
  }
}

}  // namespace kvpeer
