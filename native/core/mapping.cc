// The table of shared mappings, see mapping.h.

#include "core/mapping.h"

#include <map>
#include <mutex>

#include "core/env_state.h"
#include "core/napi_args.h"

namespace kvpeer {
namespace {

std::mutex tableMutex;

// By base address. Never destroyed: worker envs may still look at it while the process exits.
std::map<uint8_t*, std::shared_ptr<Mapping>>& table() {
  static auto* mappings = new std::map<uint8_t*, std::shared_ptr<Mapping>>();
  return *mappings;
}

// registerMapping(view: BigInt64Array over the whole mapping) -> handle
napi_value registerMapping(napi_env env, napi_callback_info info) {
  Arguments<1> args(env, info, "registerMapping");
  size_t length = 0;
  void* data = args.typedArray(0, "view", napi_bigint64_array, &length);
  if (args.ok() && (data == nullptr || length == 0)) args.fail("the mapping is empty");
  if (!args.ok()) return nullptr;

  auto* base = static_cast<uint8_t*>(data);
  const size_t bytes = length * sizeof(int64_t);
  EnvMappings& mappings = envState(env)->mappings;
  for (size_t index = 0; index < mappings.entries.size(); ++index) {
    const auto& mapping = mappings.entries[index].mapping;
    if (mapping && mapping->base == base && mapping->bytes == bytes) {
      return toNumber(env, static_cast<double>(index + 1));
    }
  }

  EnvMappings::Entry entry;
  {
    std::lock_guard<std::mutex> lock(tableMutex);
    auto& slot = table()[base];
    if (slot && slot->bytes != bytes) {
      return throwError(env, "registerMapping: this memory is registered with another size");
    }
    if (!slot) {
      slot = std::make_shared<Mapping>();
      slot->base = base;
      slot->bytes = bytes;
    }
    slot->registrationCount += 1;
    entry.mapping = slot;
  }
  napi_create_reference(env, args.value(0), 1, &entry.view);
  mappings.entries.push_back(std::move(entry));
  return toNumber(env, static_cast<double>(mappings.entries.size()));
}

// False when a NIXL agent needs the memory and this is the last registration that keeps it.
bool dropRegistration(const std::shared_ptr<Mapping>& mapping, bool isForced) {
  std::lock_guard<std::mutex> lock(tableMutex);
  const bool isLast = mapping->registrationCount == 1;
  if (isLast && !isForced && mapping->agentCount.load() > 0) return false;
  mapping->registrationCount -= 1;
  if (isLast) table().erase(mapping->base);
  return true;
}

// unregisterMapping(handle): the env's reference on the memory goes.
napi_value unregisterMapping(napi_env env, napi_callback_info info) {
  Arguments<1> args(env, info, "unregisterMapping");
  const uint64_t handle = args.uint32(0, "handle");
  if (!args.ok()) return nullptr;
  if (findMapping(env, handle) == nullptr) return throwError(env, "unregisterMapping: no such mapping");
  auto& entry = envState(env)->mappings.entries[handle - 1];
  if (!dropRegistration(entry.mapping, false)) {
    return throwError(env, "unregisterMapping: a NIXL agent still uses this memory; destroy the agent first");
  }
  napi_delete_reference(env, entry.view);
  entry = {};
  return nullptr;
}

}  // namespace

Mapping* findMapping(napi_env env, uint64_t handle) {
  const auto& entries = envState(env)->mappings.entries;
  return handle >= 1 && handle <= entries.size() ? entries[handle - 1].mapping.get() : nullptr;
}

std::shared_ptr<Mapping> shareMapping(napi_env env, uint64_t handle) {
  if (findMapping(env, handle) == nullptr) return nullptr;
  return envState(env)->mappings.entries[handle - 1].mapping;
}

void registerMappingFunctions(napi_env env, napi_value exports) {
  exportFunction(env, exports, "registerMapping", registerMapping);
  exportFunction(env, exports, "unregisterMapping", unregisterMapping);
}

void dropAllRegistrations(EnvMappings& mappings) {
  for (auto& entry : mappings.entries) {
    if (entry.mapping) dropRegistration(entry.mapping, true);
    entry.mapping.reset();
  }
}

}  // namespace kvpeer
