// What the two halves of the Node-API face share.
#pragma once

#include <node_api.h>

#include <memory>
#include <string>

#include "core/mapping.h"
#include "core/napi_args.h"
#include "nixl/agents.h"

namespace kvpeer {

constexpr uint64_t kMaxSafeInteger = (1ull << 53) - 1;
constexpr uint64_t kMaxBlocks = (1ull << 31) - 1;
constexpr const char* kUnavailable = "KVPEER_NIXL_UNAVAILABLE";

// Arguments `first` .. `first` + 2: pool handle, numBlocks, blockBytes.
template <size_t Count>
std::shared_ptr<Mapping> readPool(napi_env env, Arguments<Count>& args, size_t first, PoolGeometry* geometry) {
  const uint64_t handle = args.uint32(first, "pool");
  geometry->numBlocks = args.integer(first + 1, "numBlocks", 1, kMaxBlocks);
  geometry->blockBytes = args.integer(first + 2, "blockBytes", 1, 1ull << 32);
  if (!args.ok()) return nullptr;
  std::shared_ptr<Mapping> pool = shareMapping(env, handle);
  if (pool == nullptr) {
    args.fail("no such mapping");
  } else if (geometry->spanBytes() > pool->bytes) {
    args.fail("the pool has " + std::to_string(pool->bytes) + " bytes, the blocks and the scratch page need " +
              std::to_string(geometry->spanBytes()));
  }
  return pool;
}

// The library and the receive agents.
void registerReceiveFunctions(napi_env env, napi_value exports);
// The send agents and their writes.
void registerSendFunctions(napi_env env, napi_value exports);

}  // namespace kvpeer
