// The Node-API face of the index, the pins and the block bytes: every number is checked here or in readExtent().

#include "core/bindings.h"

#include <ctime>

#include <string>

#include "core/block_bytes.h"
#include "core/env_state.h"
#include "core/matching.h"
#include "core/napi_args.h"
#include "core/slot_state.h"

namespace kvpeer {
namespace {

constexpr uint64_t kMaxOffset = (uint64_t{1} << 53) - 1;
constexpr double kSeventeenBits = 131072;

// Arguments 0 and `extentAt`: control handle and extent offset.
template <size_t Count>
const ControlMap* readTarget(napi_env env, Arguments<Count>& args, size_t extentAt, bool needsKeys, Extent* extent) {
  const uint32_t handle = args.uint32(0, "control");
  const uint64_t offset = args.integer(extentAt, "extent", 0, kMaxOffset);
  if (!args.ok()) return nullptr;
  const ControlMap* control = findControl(env, handle);
  if (control == nullptr) {
    args.failRange("no such control mapping");
    return nullptr;
  }
  const char* error = readExtent(*control, offset, needsKeys, extent);
  if (error != nullptr) args.failRange(error);
  return args.ok() ? control : nullptr;
}

// Arguments `at` and `at` + 1: first position and count, -1 meaning to the end.
template <size_t Count>
void readRange(Arguments<Count>& args, size_t at, const Extent& extent, uint32_t* first, uint32_t* end) {
  const uint64_t start = args.integer(at, "first", 0, kMaxExtentKeys);
  const int64_t count = args.integerOrMinusOne(at + 1, "count", kMaxExtentKeys);
  if (!args.ok()) return;
  if (start > extent.count || (count >= 0 && static_cast<uint64_t>(count) > extent.count - start)) {
    return args.failRange("the range is not inside the extent");
  }
  *first = static_cast<uint32_t>(start);
  *end = count < 0 ? extent.count : static_cast<uint32_t>(start) + static_cast<uint32_t>(count);
}

// match(control, extent, first, count, worker, onlyShard) -> packed counts, or minus an outcome
napi_value match(napi_env env, napi_callback_info info) {
  Arguments<6> args(env, info, "match");
  Extent extent;
  const ControlMap* control = readTarget(env, args, 1, true, &extent);
  MatchRequest request;
  if (control == nullptr) return nullptr;
  readRange(args, 2, extent, &request.first, &request.end);
  request.worker = static_cast<int32_t>(args.integerOrMinusOne(4, "worker", control->shardCount - 1));
  request.onlyShard = static_cast<int32_t>(args.integerOrMinusOne(5, "onlyShard", control->shardCount - 1));
  if (!args.ok()) return nullptr;
  const MatchResult result = matchKeys(*control, extent, request, envState(env)->scratch);
  if (result.error != nullptr) {
    args.failRange(result.error);
    return nullptr;
  }
  if (result.outcome != kOutcomeOk) return toNumber(env, -result.outcome);
  return toNumber(env, result.hitCount + kSeventeenBits * (result.pendingCount + kSeventeenBits * result.leadingCount));
}

// release(control, extent) -> pins given back
napi_value release(napi_env env, napi_callback_info info) {
  Arguments<2> args(env, info, "release");
  Extent extent;
  const ControlMap* control = readTarget(env, args, 1, false, &extent);
  if (control == nullptr) return nullptr;
  const ReleaseResult result = releasePins(*control, extent);
  if (result.faults > 0) {
    return throwError(env, "release: " + std::to_string(result.faults) + " positions had no pin to give back");
  }
  return toNumber(env, result.count);
}

// resolve(control, extent) -> outcome
napi_value resolve(napi_env env, napi_callback_info info) {
  Arguments<2> args(env, info, "resolve");
  Extent extent;
  const ControlMap* control = readTarget(env, args, 1, true, &extent);
  if (control == nullptr) return nullptr;
  const ResolveResult result = resolveByLeases(*control, extent, envState(env)->scratch);
  if (result.error != nullptr) {
    args.failRange(result.error);
    return nullptr;
  }
  return toNumber(env, result.outcome);
}

// hashKeys(control, extent, first, count, target)
napi_value hashKeys(napi_env env, napi_callback_info info) {
  Arguments<5> args(env, info, "hashKeys");
  Extent extent;
  const ControlMap* control = readTarget(env, args, 1, true, &extent);
  uint32_t first = 0;
  uint32_t end = 0;
  if (control == nullptr) return nullptr;
  readRange(args, 2, extent, &first, &end);
  const uint64_t target = args.integer(4, "target", 0, kMaxOffset);
  if (!args.ok()) return nullptr;
  const uint64_t bytes = uint64_t{end - first} * 16;
  // Only the scratch section and the arena may be written: nothing else is the caller's.
  const auto isIn = [&](uint64_t start, uint64_t length) {
    return target >= start && target - start <= length && bytes <= length - (target - start);
  };
  if (target % 4 != 0 || (!isIn(control->scratchOffset, control->scratchBytes) &&
                          !isIn(control->arenaOffset, control->arenaBytes))) {
    args.failRange("the target is neither in the scratch section nor in the arena");
    return nullptr;
  }
  hashKeysOf(*control, extent, first, end, reinterpret_cast<uint32_t*>(control->base + target));
  return nullptr;
}

// hashKey(key: Uint8Array, seed: bigint) -> [low, high]
napi_value hashKey(napi_env env, napi_callback_info info) {
  Arguments<2> args(env, info, "hashKey");
  size_t length = 0;
  const auto* key = static_cast<const uint8_t*>(args.typedArray(0, "key", napi_uint8_array, &length));
  if (args.ok() && length > kMaxHashedBytes) args.failRange("key must have at most 64 bytes");
  uint64_t seed = 0;
  bool isLossless = false;
  if (args.ok() && napi_get_value_bigint_uint64(env, args.value(1), &seed, &isLossless) != napi_ok) {
    args.failType("seed must be a bigint");
  }
  if (args.ok() && !isLossless) args.failRange("seed must be from 0 to 2^64 - 1");
  if (!args.ok()) return nullptr;
  static const uint8_t nothing = 0;
  const Hash128 hash = hashBytes(length == 0 ? &nothing : key, length, deriveSecrets(seed));
  napi_value pair = nullptr;
  napi_value low = nullptr;
  napi_value high = nullptr;
  napi_create_array_with_length(env, 2, &pair);
  napi_create_bigint_uint64(env, hash.low, &low);
  napi_create_bigint_uint64(env, hash.high, &high);
  napi_set_element(env, pair, 0, low);
  napi_set_element(env, pair, 1, high);
  return pair;
}

// The positions of a range, their slots and the pool: what every call on block bytes starts with.
struct BlockRange {
  const ControlMap* control = nullptr;
  Extent extent;
  uint8_t* pool = nullptr;
  uint32_t first = 0;
  uint32_t end = 0;

  uint8_t* block(uint32_t slot) const { return pool + slot * control->blockBytes; }
  // The content of a block belongs to the key in its record: an extent need not have its keys any more.
  uint64_t keyHash(uint32_t slot) const {
    static const HashSecrets unseeded = deriveSecrets(0);
    return hashBytes(control->records().key(slot), control->keyBytes, unseeded).low;
  }
  uint64_t* checksum(uint32_t slot) const { return control->records().checksum(slot); }

  // Calls visit(position, slot) where `isWanted(status)` holds; false when a slot number is wrong.
  template <typename IsWanted, typename Visit>
  bool forEach(IsWanted isWanted, Visit visit) const {
    for (uint32_t position = first; position < end; ++position) {
      if (!isWanted(__atomic_load_n(extent.statuses + position, __ATOMIC_ACQUIRE))) continue;
      const auto slot = static_cast<uint32_t>(__atomic_load_n(extent.slots + position, __ATOMIC_RELAXED));
      if (slot >= control->numBlocks) return false;
      visit(position, slot);
    }
    return true;
  }
};

bool isReserved(uint8_t status) { return status == kStatusReserved; }
bool isReadable(uint8_t status) { return status == kStatusPinned || status == kStatusFound; }

// Arguments 0 to 4: control, pool, extent, first, count.
template <size_t Count>
bool readBlockRange(napi_env env, Arguments<Count>& args, BlockRange* range) {
  range->control = readTarget(env, args, 2, false, &range->extent);
  const uint32_t poolHandle = args.uint32(1, "pool");
  if (!args.ok()) return false;
  const Mapping* pool = findMapping(env, poolHandle);
  if (pool == nullptr || pool->bytes < range->control->poolBytes || pool->base == range->control->base) {
    args.failRange("no such pool");
    return false;
  }
  range->pool = pool->base;
  readRange(args, 3, range->extent, &range->first, &range->end);
  return args.ok();
}

// Runs `visit` over the range and returns what it counted, or throws for a wrong slot number.
template <size_t Count, typename IsWanted, typename Visit>
napi_value countBlocks(napi_env env, Arguments<Count>& args, const BlockRange& range, IsWanted isWanted, Visit visit) {
  uint32_t count = 0;
  const bool isSound = range.forEach(
      isWanted, [&](uint32_t position, uint32_t slot) { count += visit(position, slot) ? 1 : 0; });
  if (!isSound) args.failRange("a position names a slot that does not exist");
  return args.ok() ? toNumber(env, count) : nullptr;
}

// copyIn(control, pool, extent, first, count, source) -> blocks copied
napi_value copyIn(napi_env env, napi_callback_info info) {
  Arguments<6> args(env, info, "copyIn");
  BlockRange range;
  if (!readBlockRange(env, args, &range)) return nullptr;
  const uint64_t token = args.integer(5, "source", 1, kMaxOffset);
  if (!args.ok()) return nullptr;
  const uint8_t* source = nullptr;
  size_t bytes = 0;
  void* borrowed = regionApi()->borrowBuffer(token, &source, &bytes);
  if (borrowed == nullptr) {
    args.failRange("no buffer is held under this token");
    return nullptr;
  }
  const uint64_t blockBytes = range.control->blockBytes;
  napi_value copied = nullptr;
  if (bytes / blockBytes < range.end) {
    args.failRange("the buffer has fewer bytes than the blocks of the range");
  } else {
    copied = countBlocks(env, args, range, isReserved, [&](uint32_t position, uint32_t slot) {
      copyBlock(range.block(slot), source + position * blockBytes, blockBytes);
      return true;
    });
  }
  regionApi()->giveBack(borrowed);
  return copied;
}

napi_value fillFromKey(napi_env env, napi_callback_info info) {
  Arguments<5> args(env, info, "fillFromKey");
  BlockRange range;
  if (!readBlockRange(env, args, &range)) return nullptr;
  return countBlocks(env, args, range, isReserved, [&](uint32_t, uint32_t slot) {
    fillBlock(range.block(slot), range.control->blockBytes, range.keyHash(slot));
    return true;
  });
}

napi_value verifyFromKey(napi_env env, napi_callback_info info) {
  Arguments<5> args(env, info, "verifyFromKey");
  BlockRange range;
  if (!readBlockRange(env, args, &range)) return nullptr;
  return countBlocks(env, args, range, isReadable, [&](uint32_t, uint32_t slot) {
    return !isFilledBlock(range.block(slot), range.control->blockBytes, range.keyHash(slot));
  });
}

napi_value poison(napi_env env, napi_callback_info info) {
  Arguments<5> args(env, info, "poison");
  BlockRange range;
  if (!readBlockRange(env, args, &range)) return nullptr;
  return countBlocks(env, args, range, isReserved, [&](uint32_t, uint32_t slot) {
    poisonBlock(range.block(slot), range.control->blockBytes);
    return true;
  });
}

napi_value checksum(napi_env env, napi_callback_info info) {
  Arguments<5> args(env, info, "checksum");
  BlockRange range;
  if (!readBlockRange(env, args, &range)) return nullptr;
  return countBlocks(env, args, range, isReserved, [&](uint32_t, uint32_t slot) {
    *range.checksum(slot) = checksumBlock(range.block(slot), range.control->blockBytes);
    return true;
  });
}

// verifyChecksum(control, pool, extent, first, count, checksums) -> damaged blocks
napi_value verifyChecksum(napi_env env, napi_callback_info info) {
  Arguments<6> args(env, info, "verifyChecksum");
  BlockRange range;
  if (!readBlockRange(env, args, &range)) return nullptr;
  const uint64_t expectedAt = args.integer(5, "checksums", 0, kMaxOffset);
  if (!args.ok()) return nullptr;
  const ControlMap& control = *range.control;
  const uint64_t bytes = uint64_t{range.extent.count} * 8;
  if (expectedAt % 8 != 0 || expectedAt < control.arenaOffset || expectedAt - control.arenaOffset > control.arenaBytes ||
      bytes > control.arenaBytes - (expectedAt - control.arenaOffset)) {
    args.failRange("the checksums are not in the arena");
    return nullptr;
  }
  const uint8_t* expected = control.base + expectedAt;
  return countBlocks(env, args, range, isReserved, [&](uint32_t position, uint32_t slot) {
    const uint64_t found = checksumBlock(range.block(slot), control.blockBytes);
    const bool isDamaged = found != loadWord(expected + position * 8ull);
    if (isDamaged) {
      __atomic_store_n(range.extent.statuses + position, static_cast<uint8_t>(kStatusDamaged), __ATOMIC_RELEASE);
    } else {
      *range.checksum(slot) = found;
    }
    return isDamaged;
  });
}

napi_value threadCpuNs(napi_env env, napi_callback_info) {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return toNumber(env, static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec));
}

}  // namespace

void registerCoreFunctions(napi_env env, napi_value exports) {
  exportFunction(env, exports, "match", match);
  exportFunction(env, exports, "release", release);
  exportFunction(env, exports, "resolve", resolve);
  exportFunction(env, exports, "hashKeys", hashKeys);
  exportFunction(env, exports, "hashKey", hashKey);
  exportFunction(env, exports, "copyIn", copyIn);
  exportFunction(env, exports, "fillFromKey", fillFromKey);
  exportFunction(env, exports, "verifyFromKey", verifyFromKey);
  exportFunction(env, exports, "poison", poison);
  exportFunction(env, exports, "checksum", checksum);
  exportFunction(env, exports, "verifyChecksum", verifyChecksum);
  exportFunction(env, exports, "threadCpuNs", threadCpuNs);
  napi_value features = nullptr;
  napi_create_object(env, &features);
  setProperty(env, features, "avx2", toBoolean(env, hasAvx2()));
  setProperty(env, exports, "cpuFeatures", features);
  setProperty(env, exports, "addonVersion", toNumber(env, kAddonVersion));
}

}  // namespace kvpeer
