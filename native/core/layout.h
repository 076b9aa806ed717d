// The control mapping as src/shared/layout.ts and src/shared/operations.ts describe it; checked against the header when
// a mapping is attached.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvpeer {

constexpr uint64_t kLayoutMagic = 0x4d4372656570766b;
constexpr uint64_t kLayoutVersion = 2;
constexpr size_t kPageBytes = 4096;

// u64 fields of the header, at index * 8.
enum HeaderField : size_t {
  kMagic,
  kVersion,
  kControlBytes,
  kPoolBytes,
  kNumBlocks,
  kBlockBytes,
  kKeyBytes,
  kShardCount,
  kSlotsPerShard,
  kBucketsPerShard,
  kRecordBytes,
  kRingCapacity,
  kSeed,
  kIncarnation,
  kWordsOffset,
  kRingsOffset,
  kScratchOffset,
  kCountersOffset,
  kArenaOffset,
  kArenaBytes,
  kIndexOffset,
  kRecordsOffset,
  kHistoryOffset,
  kHeaderFieldCount
};

constexpr uint64_t kMaxKeyBytes = 64;
constexpr uint64_t kSmallKeyBytes = 40;
constexpr uint64_t kMaxShards = 30;
constexpr uint64_t kMaxSlots = (uint64_t{1} << 31) - 2;
constexpr uint64_t kMaxControlBytes = uint64_t{1} << 32;
constexpr uint64_t kMaxExtentKeys = 65536;
constexpr uint64_t kControlWordBytes = 128;
constexpr uint64_t kRingRecordsOffset = 256;
constexpr uint64_t kRingRecordBytes = 32;
constexpr uint64_t kWorkerScratchBytes = 65536;
constexpr uint64_t kCounterBytesPerWorker = 512;
constexpr uint64_t kHistoryStatisticsBytes = 256;
constexpr uint64_t kGhostBytesPerSlot = 4;
constexpr uint64_t kPoolScratchBytes = 4096;

constexpr size_t kBucketBytes = 64;
constexpr size_t kBucketEntries = 8;

constexpr size_t kRecordState = 0;
constexpr size_t kRecordChecksum = 8;
constexpr size_t kRecordKey = 24;

// int32 words of an extent's header (ExtentWord).
enum ExtentWord : size_t {
  kRecorded,
  kOwnersLeft,
  kOutcome,
  kCount,
  kFlags,
  kKeysOffset,
  kKeyStride,
  kSlotsOffset,
  kGenerationsOffset,
  kIndexesOffset,
  kLeasesOffset,
  kLeaseCount,
  kStatusesOffset,
  kPinLimit,
  kPeerNumBlocks,
  kExtentBytes
};
constexpr uint64_t kExtentHeaderBytes = 64;
constexpr uint64_t kExtentUnitBytes = 64;

enum ExtentFlag : uint32_t { kPin = 1, kCheckDestinations = 2, kCountUnique = 4, kKeysInMessage = 64 };

enum PositionStatus : uint8_t {
  kStatusPending = 1,
  kStatusReserved = 2,
  kStatusSkip = 5,
  kStatusDamaged = 6,
  kStatusFound = 7,
  kStatusMiss = 0xc2,
  kStatusPinned = 0xc3,
};

enum Outcome : int { kOutcomeOk = 0, kOutcomeNotInLease = 1, kOutcomeBadDestination = 2 };

}  // namespace kvpeer
