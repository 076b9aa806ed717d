// A control mapping whose header has been checked, and the extents of its arena.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/hash.h"
#include "core/layout.h"

namespace kvpeer {

// The slot records. Small enough to be handed around by value, so that a loop which stores bytes (that may alias anything)
// keeps it in registers.
struct SlotRecords {
  uint8_t* base;
  uint32_t shift;
  uint32_t count;
  uint32_t keyBytes;

  uint8_t* record(uint32_t slot) const { return base + (static_cast<uint64_t>(slot) << shift); }
  uint32_t* state(uint32_t slot) const { return reinterpret_cast<uint32_t*>(record(slot) + kRecordState); }
  uint8_t* key(uint32_t slot) const { return record(slot) + kRecordKey; }
  uint64_t* checksum(uint32_t slot) const { return reinterpret_cast<uint64_t*>(record(slot) + kRecordChecksum); }
};

// Copied from the header once: what another thread writes there later changes nothing here.
struct ControlMap {
  uint8_t* base = nullptr;
  uint64_t poolBytes = 0;
  uint64_t blockBytes = 0;
  uint64_t scratchOffset = 0;
  uint64_t scratchBytes = 0;
  uint64_t arenaOffset = 0;
  uint64_t arenaBytes = 0;
  uint64_t indexOffset = 0;
  uint64_t recordsOffset = 0;
  uint64_t shardReciprocal = 0;
  uint32_t numBlocks = 0;
  uint32_t keyBytes = 0;
  uint32_t shardCount = 0;
  uint32_t bucketsPerShard = 0;
  uint32_t recordBytes = 0;
  HashSecrets secrets = {};

  KeyPlace placeOfKey(const uint8_t* key) const {
    return placeOf(hashBytes(key, keyBytes, secrets), bucketsPerShard, shardCount, shardReciprocal);
  }
  uint32_t* bucket(uint32_t shard, uint32_t index) const {
    const uint64_t number = static_cast<uint64_t>(shard) * bucketsPerShard + index;
    return reinterpret_cast<uint32_t*>(base + indexOffset + number * kBucketBytes);
  }
  SlotRecords records() const { return {base + recordsOffset, recordBytes == 64 ? 6u : 7u, numBlocks, keyBytes}; }
};

// nullptr when every field of the header fits the mapping and the rules of layout.ts; otherwise what is wrong.
const char* readControlHeader(uint8_t* base, size_t bytes, ControlMap* control);

// An extent whose header was copied and checked: every array lies inside it, absent ones are nullptr.
struct Extent {
  uint32_t* words = nullptr;
  uint32_t count = 0;
  uint32_t flags = 0;
  const uint8_t* keys = nullptr;
  uint64_t keyStride = 0;
  int32_t* slots = nullptr;
  uint16_t* generations = nullptr;
  const uint32_t* indexes = nullptr;
  const uint32_t* leases = nullptr;
  uint32_t leaseCount = 0;
  uint8_t* statuses = nullptr;
  uint32_t pinLimit = 0;
  uint32_t peerNumBlocks = 0;
  // Not 0: the token of the message that has the keys, from `messageKeysOffset` on; `keys` is nullptr until somebody has
  // found it and checked that they are inside.
  uint32_t keysMessage = 0;
  uint64_t messageKeysOffset = 0;

  const uint8_t* key(uint32_t position) const { return keys + position * keyStride; }
};

// nullptr when the extent at `offset` is sound (it has slots, generations and statuses, and keys when `needsKeys`,
// in itself or in a message).
const char* readExtent(const ControlMap& control, uint64_t offset, bool needsKeys, Extent* extent);

}  // namespace kvpeer
