// Checks of the control mapping's header and of extents, see control.h.

#include "core/control.h"

namespace kvpeer {
namespace {

uint64_t roundUpToPage(uint64_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

// Two entries per slot; at least a pair, and whole pages beyond one.
uint64_t bucketsFor(uint64_t slots) {
  const uint64_t buckets = (slots * 2 + kBucketEntries - 1) / kBucketEntries;
  if (buckets <= kPageBuckets) return buckets < 2 ? 2 : buckets;
  return (buckets + kPageBuckets - 1) / kPageBuckets * kPageBuckets;
}

}  // namespace

// The order of these checks matters: every product is formed from numbers that were bounded before.
const char* readControlHeader(uint8_t* base, size_t bytes, ControlMap* control) {
  if (bytes < kPageBytes) return "the mapping is smaller than its header";
  uint64_t field[kHeaderFieldCount];
  for (size_t index = 0; index < kHeaderFieldCount; ++index) {
    field[index] = __atomic_load_n(reinterpret_cast<uint64_t*>(base) + index, __ATOMIC_ACQUIRE);
  }
  if (field[kMagic] != kLayoutMagic) return "the mapping has no kvpeer header";
  if (field[kVersion] != kLayoutVersion) return "the mapping has another layout version";
  const uint64_t shardCount = field[kShardCount];
  const uint64_t numBlocks = field[kNumBlocks];
  const uint64_t keyBytes = field[kKeyBytes];
  const uint64_t capacity = field[kRingCapacity];
  if (shardCount < 1 || shardCount > kMaxShards) return "shardCount is out of range";
  if (numBlocks < shardCount || numBlocks > kMaxSlots || numBlocks % shardCount != 0) return "numBlocks is out of range";
  if (keyBytes < 1 || keyBytes > kMaxKeyBytes) return "keyBytes is out of range";
  if (field[kBlockBytes] < kPageBytes || field[kBlockBytes] > (uint64_t{1} << 40) ||
      field[kBlockBytes] % kPageBytes != 0) {
    return "blockBytes is out of range";
  }
  if (capacity < 2 || capacity > (1u << 20) || (capacity & (capacity - 1)) != 0) return "ringCapacity is out of range";
  if (field[kArenaBytes] < kPageBytes || field[kArenaBytes] > kMaxControlBytes ||
      field[kArenaBytes] % kPageBytes != 0) {
    return "arenaBytes is out of range";
  }
  if (field[kSlotsPerShard] != numBlocks / shardCount) return "slotsPerShard does not fit numBlocks";
  const uint64_t buckets = bucketsFor(field[kSlotsPerShard]);
  if (field[kBucketsPerShard] != buckets) return "bucketsPerShard does not fit slotsPerShard";
  const uint64_t recordBytes = keyBytes <= kSmallKeyBytes ? 64 : 128;
  if (field[kRecordBytes] != recordBytes) return "recordBytes does not fit keyBytes";
  if (field[kPoolBytes] != numBlocks * field[kBlockBytes] + kPoolScratchBytes) return "poolBytes does not fit numBlocks";

  uint64_t end = kPageBytes;
  const auto isPlaced = [&](HeaderField offset, uint64_t sectionBytes) {
    const bool isRight = field[offset] == end;
    end = roundUpToPage(end + sectionBytes);
    return isRight;
  };
  const uint64_t ringBytes = kRingRecordsOffset + capacity * kRingRecordBytes;
  if (!isPlaced(kWordsOffset, (1 + 2 * shardCount) * kControlWordBytes)) return "wordsOffset is wrong";
  if (!isPlaced(kRingsOffset, 2 * shardCount * ringBytes)) return "ringsOffset is wrong";
  if (!isPlaced(kScratchOffset, shardCount * kWorkerScratchBytes)) return "scratchOffset is wrong";
  if (!isPlaced(kCountersOffset, shardCount * kCounterBytesPerWorker)) return "countersOffset is wrong";
  if (!isPlaced(kArenaOffset, field[kArenaBytes])) return "arenaOffset is wrong";
  if (!isPlaced(kIndexOffset, shardCount * buckets * kBucketBytes)) return "indexOffset is wrong";
  if (!isPlaced(kRecordsOffset, numBlocks * recordBytes)) return "recordsOffset is wrong";
  const uint64_t historyBytes = kHistoryStatisticsBytes + kGhostBytesPerSlot * field[kSlotsPerShard];
  if (!isPlaced(kHistoryOffset, shardCount * ((historyBytes + 63) / 64 * 64))) return "historyOffset is wrong";
  if (field[kControlBytes] != end || end > kMaxControlBytes) return "controlBytes is wrong";
  if (bytes < end) return "the mapping is smaller than its header says";

  control->base = base;
  control->poolBytes = field[kPoolBytes];
  control->blockBytes = field[kBlockBytes];
  control->scratchOffset = field[kScratchOffset];
  control->scratchBytes = shardCount * kWorkerScratchBytes;
  control->arenaOffset = field[kArenaOffset];
  control->arenaBytes = field[kArenaBytes];
  control->indexOffset = field[kIndexOffset];
  control->recordsOffset = field[kRecordsOffset];
  control->shardReciprocal = ((uint64_t{1} << 32) + shardCount - 1) / shardCount;
  control->numBlocks = static_cast<uint32_t>(numBlocks);
  control->keyBytes = static_cast<uint32_t>(keyBytes);
  control->shardCount = static_cast<uint32_t>(shardCount);
  control->bucketsPerShard = static_cast<uint32_t>(buckets);
  control->recordBytes = static_cast<uint32_t>(recordBytes);
  control->secrets = deriveSecrets(field[kSeed]);
  return nullptr;
}

const char* readExtent(const ControlMap& control, uint64_t offset, bool needsKeys, Extent* extent) {
  if (offset % kExtentUnitBytes != 0 || offset < control.arenaOffset ||
      offset - control.arenaOffset > control.arenaBytes - kExtentHeaderBytes) {
    return "the extent is not in the arena";
  }
  uint8_t* start = control.base + offset;
  uint32_t word[kExtentBytes + 1];
  for (size_t index = 0; index <= kExtentBytes; ++index) {
    word[index] = __atomic_load_n(reinterpret_cast<uint32_t*>(start) + index, __ATOMIC_RELAXED);
  }
  const uint64_t bytes = word[kExtentBytes];
  if (bytes < kExtentHeaderBytes || bytes > control.arenaBytes - (offset - control.arenaOffset)) {
    return "the extent reaches beyond the arena";
  }
  const uint64_t count = word[kCount];
  if (count > kMaxExtentKeys) return "the extent names too many keys";
  const auto isInside = [&](uint64_t at, uint64_t length, uint64_t align) {
    return at >= kExtentHeaderBytes && at % align == 0 && at <= bytes && length <= bytes - at;
  };
  if (!isInside(word[kSlotsOffset], count * 4, 4)) return "the extent's slots are not inside it";
  if (!isInside(word[kGenerationsOffset], count * 2, 2)) return "the extent's generations are not inside it";
  if (!isInside(word[kStatusesOffset], count, 1)) return "the extent's statuses are not inside it";
  extent->words = reinterpret_cast<uint32_t*>(start);
  extent->count = static_cast<uint32_t>(count);
  extent->flags = word[kFlags];
  extent->slots = reinterpret_cast<int32_t*>(start + word[kSlotsOffset]);
  extent->generations = reinterpret_cast<uint16_t*>(start + word[kGenerationsOffset]);
  extent->statuses = start + word[kStatusesOffset];
  extent->pinLimit = word[kPinLimit];
  extent->peerNumBlocks = word[kPeerNumBlocks];

  if (needsKeys && (extent->flags & kKeysInMessage) != 0) {
    extent->keysMessage = word[kPeerNumBlocks];
    extent->messageKeysOffset = word[kKeysOffset];
    extent->keyStride = word[kKeyStride];
    if (extent->keysMessage == 0) return "the extent names no message";
  } else if (needsKeys) {
    const uint64_t stride = word[kKeyStride];
    const uint64_t keyArea = count == 0 ? 0 : (count - 1) * stride + control.keyBytes;
    if (stride < control.keyBytes || stride > bytes) return "the extent's key stride is out of range";
    if (!isInside(word[kKeysOffset], keyArea, 1)) return "the extent's keys are not inside it";
    extent->keys = start + word[kKeysOffset];
    extent->keyStride = stride;
  }
  if (word[kIndexesOffset] != 0) {
    if (!isInside(word[kIndexesOffset], count * 4, 4)) return "the extent's indexes are not inside it";
    extent->indexes = reinterpret_cast<const uint32_t*>(start + word[kIndexesOffset]);
  }
  if (word[kLeasesOffset] != 0) {
    const uint64_t leaseCount = word[kLeaseCount];
    if (leaseCount > kMaxExtentKeys || !isInside(word[kLeasesOffset], leaseCount * 4, 4)) {
      return "the extent's leases are not inside it";
    }
    extent->leases = reinterpret_cast<const uint32_t*>(start + word[kLeasesOffset]);
    extent->leaseCount = word[kLeaseCount];
  }
  return nullptr;
}

}  // namespace kvpeer
