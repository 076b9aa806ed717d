// The table of shared mappings, see mapping.h.

#include "core/mapping.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "core/env_state.h"
#include "core/napi_args.h"

namespace kvpeer {
namespace {

constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, Linux 5.14; older headers lack the name
constexpr size_t kTouchBytes = size_t{64} << 20;

std::atomic<const RegionApi*> sharedRegionApi{nullptr};
std::mutex tableMutex;

// By base address. Never destroyed: worker envs may still look at it while the process exits.
std::map<uint8_t*, std::weak_ptr<Mapping>>& table() {
  static auto* mappings = new std::map<uint8_t*, std::weak_ptr<Mapping>>();
  return *mappings;
}

// A view over a whole mapping; false with an exception pending when it is none.
template <size_t Count>
bool readView(Arguments<Count>& args, size_t index, uint8_t** base, size_t* bytes) {
  size_t length = 0;
  void* data = args.typedArray(index, "view", napi_bigint64_array, &length);
  if (args.ok() && (data == nullptr || length == 0)) args.failRange("the mapping is empty");
  if (args.ok() && regionApi() == nullptr) args.fail("useRegion comes first");
  *base = static_cast<uint8_t*>(data);
  *bytes = length * sizeof(int64_t);
  return args.ok();
}

// The handle (index + 1) of this memory in this env, attached now if it was not; 0 when it is no mapping of ours.
uint32_t attachMapping(napi_env env, uint8_t* base, size_t bytes) {
  auto& entries = envState(env)->mappings.entries;
  for (size_t index = 0; index < entries.size(); ++index) {
    const auto& mapping = entries[index].mapping;
    if (mapping && mapping->base == base && mapping->bytes == bytes) return static_cast<uint32_t>(index + 1);
  }
  std::lock_guard<std::mutex> lock(tableMutex);
  auto& known = table()[base];
  std::shared_ptr<Mapping> mapping = known.lock();
  if (!mapping || mapping->bytes != bytes) {
    if (!regionApi()->retain(base, bytes)) return 0;
    mapping = std::make_shared<Mapping>(base, bytes);
    known = mapping;
  }
  mapping->attachmentCount += 1;
  EnvMappings::Entry entry;
  entry.mapping = std::move(mapping);
  entries.push_back(std::move(entry));
  return static_cast<uint32_t>(entries.size());
}

// False when a NIXL agent needs the memory and this is the last attachment.
bool dropAttachment(const std::shared_ptr<Mapping>& mapping, bool isForced) {
  std::lock_guard<std::mutex> lock(tableMutex);
  if (mapping->attachmentCount == 1 && !isForced && mapping->agentCount.load() > 0) return false;
  mapping->attachmentCount -= 1;
  return true;
}

// useRegion(path of kvpeer_region's file, which is loaded already)
napi_value useRegion(napi_env env, napi_callback_info info) {
  Arguments<1> args(env, info, "useRegion");
  const std::string path = args.string(0, "path", 4095);
  if (!args.ok()) return nullptr;
  // Only looked up, not loaded, and never given back: the functions must outlive every env.
  void* library = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  const auto* api = library == nullptr ? nullptr : static_cast<const RegionApi*>(dlsym(library, kRegionApiSymbol));
  if (api == nullptr || api->magic != kRegionApiMagic || api->version != kRegionApiVersion) {
    return throwError(env, "useRegion: kvpeer_region of the same version must be loaded from this path");
  }
  sharedRegionApi.store(api);
  return nullptr;
}

// attachControl(view) -> handle
napi_value attachControl(napi_env env, napi_callback_info info) {
  Arguments<1> args(env, info, "attachControl");
  uint8_t* base = nullptr;
  size_t bytes = 0;
  if (!readView(args, 0, &base, &bytes)) return nullptr;
  auto control = std::make_unique<ControlMap>();
  const char* error = readControlHeader(base, bytes, control.get());
  if (error != nullptr) {
    args.failRange(error);
    return nullptr;
  }
  const uint32_t handle = attachMapping(env, base, bytes);
  if (handle == 0) {
    args.failRange("the memory is no mapping made by mapAnonymous or mapFile");
    return nullptr;
  }
  envState(env)->mappings.entries[handle - 1].control = std::move(control);
  return toNumber(env, handle);
}

// attachPool(view, control) -> handle
napi_value attachPool(napi_env env, napi_callback_info info) {
  Arguments<2> args(env, info, "attachPool");
  uint8_t* base = nullptr;
  size_t bytes = 0;
  if (!readView(args, 0, &base, &bytes)) return nullptr;
  const uint32_t controlHandle = args.uint32(1, "control");
  if (!args.ok()) return nullptr;
  const ControlMap* control = findControl(env, controlHandle);
  if (control == nullptr) {
    args.failRange("no such control mapping");
  } else if (bytes < control->poolBytes) {
    args.failRange("the pool has " + std::to_string(bytes) + " bytes, the control mapping says " +
                   std::to_string(control->poolBytes));
  }
  const uint32_t handle = args.ok() ? attachMapping(env, base, bytes) : 0;
  if (args.ok() && handle == 0) args.failRange("the memory is no mapping made by mapAnonymous or mapFile");
  return args.ok() ? toNumber(env, handle) : nullptr;
}

// detach(handle)
napi_value detach(napi_env env, napi_callback_info info) {
  Arguments<1> args(env, info, "detach");
  const uint64_t handle = args.uint32(0, "handle");
  if (args.ok() && findMapping(env, handle) == nullptr) args.failRange("no such mapping");
  if (!args.ok()) return nullptr;
  auto& entry = envState(env)->mappings.entries[handle - 1];
  if (!dropAttachment(entry.mapping, false)) {
    return throwError(env, "detach: a NIXL agent still uses this memory; destroy the agent first");
  }
  entry = {};
  return nullptr;
}

struct Touch {
  napi_async_work work = nullptr;
  napi_deferred deferred = nullptr;
  uint8_t* base = nullptr;
  size_t bytes = 0;
  int error = 0;
};

// Makes the pages present by writing nothing: an atomic "or 0" per page keeps what others write meanwhile.
void touchEachPage(uint8_t* base, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kPageBytes) __atomic_fetch_or(base + at, 0, __ATOMIC_RELAXED);
}

void runTouch(napi_env, void* data) {
  auto* touch = static_cast<Touch*>(data);
  // In stretches: another thread that faults in the same mapping waits for one of them at most.
  for (size_t at = 0; at < touch->bytes && touch->error == 0; at += kTouchBytes) {
    const size_t length = std::min(kTouchBytes, touch->bytes - at);
    if (madvise(touch->base + at, length, kPopulateWrite) == 0) continue;
    if (errno == EINVAL) {
      touchEachPage(touch->base + at, length);
    } else {
      touch->error = errno;
    }
  }
}

void finishTouch(napi_env env, napi_status, void* data) {
  auto* touch = static_cast<Touch*>(data);
  regionApi()->release(touch->base);
  if (touch->error == 0) {
    napi_value undefined = nullptr;
    napi_get_undefined(env, &undefined);
    napi_resolve_deferred(env, touch->deferred, undefined);
  } else {
    napi_value error = nullptr;
    napi_create_error(env, nullptr,
                      toText(env, "the mapping's memory cannot be had: " + std::string(strerror(touch->error))),
                      &error);
    napi_reject_deferred(env, touch->deferred, error);
  }
  napi_delete_async_work(env, touch->work);
  delete touch;
}

// touch(view) -> promise
napi_value touch(napi_env env, napi_callback_info info) {
  Arguments<1> args(env, info, "touch");
  uint8_t* base = nullptr;
  size_t bytes = 0;
  if (!readView(args, 0, &base, &bytes)) return nullptr;
  if (!regionApi()->retain(base, bytes)) {
    args.failRange("the memory is no mapping made by mapAnonymous or mapFile");
    return nullptr;
  }
  auto* work = new Touch();
  work->base = base;
  work->bytes = bytes;
  napi_value promise = nullptr;
  napi_create_promise(env, &work->deferred, &promise);
  napi_create_async_work(env, nullptr, toText(env, "kvpeer:touch"), runTouch, finishTouch, work, &work->work);
  napi_queue_async_work(env, work->work);
  return promise;
}

}  // namespace

Mapping::~Mapping() { regionApi()->release(base); }

const RegionApi* regionApi() { return sharedRegionApi.load(std::memory_order_acquire); }

Mapping* findMapping(napi_env env, uint64_t handle) {
  const auto& entries = envState(env)->mappings.entries;
  return handle >= 1 && handle <= entries.size() ? entries[handle - 1].mapping.get() : nullptr;
}

std::shared_ptr<Mapping> shareMapping(napi_env env, uint64_t handle) {
  if (findMapping(env, handle) == nullptr) return nullptr;
  return envState(env)->mappings.entries[handle - 1].mapping;
}

const ControlMap* findControl(napi_env env, uint64_t handle) {
  const auto& entries = envState(env)->mappings.entries;
  return handle >= 1 && handle <= entries.size() ? entries[handle - 1].control.get() : nullptr;
}

void registerMappingFunctions(napi_env env, napi_value exports) {
  exportFunction(env, exports, "useRegion", useRegion);
  exportFunction(env, exports, "attachControl", attachControl);
  exportFunction(env, exports, "attachPool", attachPool);
  exportFunction(env, exports, "detach", detach);
  exportFunction(env, exports, "touch", touch);
}

void dropAllAttachments(EnvMappings& mappings) {
  for (auto& entry : mappings.entries) {
    if (entry.mapping) dropAttachment(entry.mapping, true);
    entry = {};
  }
}

}  // namespace kvpeer
