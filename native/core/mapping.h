// The table of shared mappings: what a handle from JavaScript stands for, and who still needs the memory behind it.
//
// Every env (main thread, each worker) attaches a mapping once, through a BigInt64Array over the whole of it, and gets a
// handle of its own, never used again after detach. As long as any env has it attached or an agent holds it, the memory
// stays mapped: the Mapping has a reference on it that kvpeer_region counts (region/region_api.h). A NIXL agent holds
// the mapping besides: the last attachment cannot be given back under it.
#pragma once

#include <node_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/control.h"
#include "region/region_api.h"

namespace kvpeer {

// One per mapping in the process, shared by all envs that attached it.
struct Mapping {
  // The reference on the memory has been taken by whoever made this object.
  Mapping(uint8_t* start, size_t length) : base(start), bytes(length) {}
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  uint8_t* const base;
  const size_t bytes;
  // Envs that attached it. Changed under the table's lock.
  uint32_t attachmentCount = 0;
  // NIXL agents that have the memory registered with the library.
  std::atomic<uint32_t> agentCount{0};

  // The address of `length` bytes at `offset`, or nullptr when they are not all inside.
  uint8_t* at(uint64_t offset, uint64_t length) const {
    if (offset > bytes || length > bytes - offset) return nullptr;
    return base + offset;
  }
};

// A reference that keeps a mapping's last attachment from being given back.
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

// The control map behind a handle that attachControl gave to this env, or nullptr.
const ControlMap* findControl(napi_env env, uint64_t handle);

// What kvpeer_region offers, once useRegion has been called in any env of the process; nullptr before.
const RegionApi* regionApi();

struct EnvMappings {
  struct Entry {
    std::shared_ptr<Mapping> mapping;
    // Only of a control mapping.
    std::unique_ptr<ControlMap> control;
  };
  // Index = handle - 1; an entry that was given back stays empty, so a stale handle finds nothing.
  std::vector<Entry> entries;
};

// Adds useRegion, attachControl, attachPool, detach and touch.
void registerMappingFunctions(napi_env env, napi_value exports);

// At the env's end: its attachments go whatever is left.
void dropAllAttachments(EnvMappings& mappings);

}  // namespace kvpeer
