// The table of shared mappings: what a handle from JavaScript stands for, and who still needs the memory behind it.
//
// Every env (main thread, each worker) registers a mapping once, through a BigInt64Array over the whole of it, and gets
// a handle of its own. While it is registered the env holds a strong reference on that view, so the memory stays
// mapped. A NIXL agent holds the mapping besides: the last registration cannot be given back under it.
#pragma once

#include <node_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace kvpeer {

// One per address range in the process, shared by all envs that registered it.
struct Mapping {
  uint8_t* base = nullptr;
  size_t bytes = 0;
  // Envs that registered it. Changed under the table's lock.
  uint32_t registrationCount = 0;
  // NIXL agents that have the memory registered with the library.
  std::atomic<uint32_t> agentCount{0};

  // The address of `length` bytes at `offset`, or nullptr when they are not all inside.
  uint8_t* at(uint64_t offset, uint64_t length) const {
    if (offset > bytes || length > bytes - offset) return nullptr;
    return base + offset;
  }
};

// A reference that keeps a mapping's last registration from being given back.
class MappingHold {
 public:
  MappingHold() = default;
  explicit MappingHold(std::shared_ptr<Mapping> mapping) : mapping_(std::move(mapping)) {
    if (mapping_) mapping_->agentCount.fetch_add(1);
  }
  MappingHold(MappingHold&& other) noexcept : mapping_(std::move(other.mapping_)) {}
  MappingHold& operator=(MappingHold&& other) noexcept {
    release();
    mapping_ = std::move(other.mapping_);
    return *this;
  }
  MappingHold(const MappingHold&) = delete;
  MappingHold& operator=(const MappingHold&) = delete;
  ~MappingHold() { release(); }

  void release() {
    if (mapping_) mapping_->agentCount.fetch_sub(1);
    mapping_.reset();
  }
  const Mapping* operator->() const { return mapping_.get(); }

 private:
  std::shared_ptr<Mapping> mapping_;
};

// The mapping behind a handle of this env, or nullptr. Lock-free: a handle is known to its own env only.
Mapping* findMapping(napi_env env, uint64_t handle);
// The same, to be kept beyond the call.
std::shared_ptr<Mapping> shareMapping(napi_env env, uint64_t handle);

struct EnvMappings {
  struct Entry {
    std::shared_ptr<Mapping> mapping;
    napi_ref view = nullptr;
  };
  // Index = handle - 1; an entry that was given back stays empty, so a stale handle finds nothing.
  std::vector<Entry> entries;
};

void registerMappingFunctions(napi_env env, napi_value exports);

// At the env's end: its registrations go whatever is left.
void dropAllRegistrations(EnvMappings& mappings);

}  // namespace kvpeer
