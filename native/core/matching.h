// Match, release and resolve: what any worker does with the keys and pins of an extent.
#pragma once

#include <cstdint>

#include "core/control.h"
#include "core/number_sets.h"

namespace kvpeer {

struct MatchRequest {
  uint32_t first = 0;
  uint32_t end = 0;
  // Bit of the RECORDED word, or negative: none.
  int32_t worker = -1;
  // Keys of other shards are left alone, unless negative.
  int32_t onlyShard = -1;
};

struct MatchResult {
  Outcome outcome = kOutcomeOk;
  uint32_t hitCount = 0;
  uint32_t pendingCount = 0;
  uint32_t leadingCount = 0;
  // Not nullptr: the call was wrong, nothing was pinned.
  const char* error = nullptr;
};

MatchResult matchKeys(const ControlMap& control, const Extent& extent, const MatchRequest& request,
                      MatchScratch& scratch);

struct ReleaseResult {
  uint32_t count = 0;
  // Positions whose slot number or pin count was wrong.
  uint32_t faults = 0;
};

// Every Pinned position gives its pin back and becomes a miss.
ReleaseResult releasePins(const ControlMap& control, const Extent& extent);

struct ResolveResult {
  Outcome outcome = kOutcomeOk;
  const char* error = nullptr;
};

// Every key gets the slot that one of the extent's leases has pinned for it, and the status Found.
ResolveResult resolveByLeases(const ControlMap& control, const Extent& extent, MatchScratch& scratch);

// Shard, bucket A, bucket B and tag of the keys first .. end - 1, four words each.
void hashKeysOf(const ControlMap& control, const Extent& extent, uint32_t first, uint32_t end, uint32_t* target);

}  // namespace kvpeer
