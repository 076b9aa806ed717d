// The Node-API face of the index and the pins: every number is checked here or in readExtent().

#include "core/bindings.h"

#include <poll.h>

#include <ctime>

#include <string>

#include "core/block_bytes.h"
#include "core/env_state.h"
#include "core/extent_args.h"
#include "core/matching.h"

namespace kvpeer {
namespace {

constexpr double kSeventeenBits = 131072;

// match(control, extent, first, count, worker, onlyShard) -> packed counts, or minus an outcome
napi_value match(napi_env env, napi_callback_info info) {
  Arguments<6> args(env, info, "match");
  Extent extent;
  MessageHold hold;
  const ControlMap* control = readTarget(env, args, 1, true, &extent, &hold);
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

// freeBytes(buffer: ArrayBuffer)
napi_value freeBytes(napi_env env, napi_callback_info info) {
  Arguments<1> args(env, info, "freeBytes");
  bool isArrayBuffer = false;
  if (args.ok()) napi_is_arraybuffer(env, args.value(0), &isArrayBuffer);
  if (args.ok() && !isArrayBuffer) args.failType("buffer must be an ArrayBuffer");
  if (args.ok() && napi_detach_arraybuffer(env, args.value(0)) != napi_ok) args.fail("the buffer cannot be detached");
  return nullptr;
}

// isWritable(fd, waitMs) -> boolean
napi_value isWritable(napi_env env, napi_callback_info info) {
  Arguments<2> args(env, info, "isWritable");
  pollfd watched = {static_cast<int>(args.integer(0, "fd", 0, INT32_MAX)), POLLOUT, 0};
  const auto waitMs = static_cast<int>(args.integer(1, "waitMs", 0, 60'000));
  if (!args.ok()) return nullptr;
  return toBoolean(env, poll(&watched, 1, waitMs) > 0);
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
  exportFunction(env, exports, "freeBytes", freeBytes);
  exportFunction(env, exports, "isWritable", isWritable);
  exportFunction(env, exports, "threadCpuNs", threadCpuNs);
  napi_value features = nullptr;
  napi_create_object(env, &features);
  setProperty(env, features, "avx2", toBoolean(env, hasAvx2()));
  setProperty(env, exports, "cpuFeatures", features);
  setProperty(env, exports, "addonVersion", toNumber(env, kAddonVersion));
}

}  // namespace kvpeer
