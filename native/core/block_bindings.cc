// The Node-API face of the block bytes: every slot number is checked before its block is touched.

#include "core/bindings.h"
#include "core/block_bytes.h"
#include "core/extent_args.h"

namespace kvpeer {
namespace {

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
    const uint64_t wanted = loadWord(expected + position * 8ull);
    const bool isDamaged = wanted != 0 && wanted != found;
    if (isDamaged) {
      __atomic_store_n(range.extent.statuses + position, static_cast<uint8_t>(kStatusDamaged), __ATOMIC_RELEASE);
    } else {
      *range.checksum(slot) = found;
    }
    return isDamaged;
  });
}

}  // namespace

void registerBlockFunctions(napi_env env, napi_value exports) {
  exportFunction(env, exports, "copyIn", copyIn);
  exportFunction(env, exports, "fillFromKey", fillFromKey);
  exportFunction(env, exports, "verifyFromKey", verifyFromKey);
  exportFunction(env, exports, "poison", poison);
  exportFunction(env, exports, "checksum", checksum);
  exportFunction(env, exports, "verifyChecksum", verifyChecksum);
}

}  // namespace kvpeer
