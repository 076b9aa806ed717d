// What kvpeer_region offers to native code of the other addon: references on mappings and on held buffers.
//
// kvpeer_region exports the table of functions under the name kvpeer_region_api; kvpeer_core finds it there (dlsym), so
// no memory address ever passes through JavaScript.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvpeer {

constexpr uint64_t kRegionApiMagic = 0x6b76706565724150;  // "kvpeerAP"
constexpr uint32_t kRegionApiVersion = 1;

struct RegionApi {
  uint64_t magic;
  uint32_t version;

  // Keeps the mapping that starts at `base` from being unmapped. False when it is not a live mapping of this addon with
  // at least `bytes` bytes. Any thread.
  bool (*retain)(const void* base, size_t bytes);
  // Gives one retain() back; the last reference of all unmaps. Any thread.
  void (*release)(const void* base);

  // The memory of a held buffer, or nullptr for an unknown token. What is returned keeps the memory alive until
  // giveBack(), also when the token is dropped meanwhile. Any thread.
  void* (*borrowBuffer)(uint64_t token, const uint8_t** data, size_t* bytes);
  void (*giveBack)(void* borrowed);
};

constexpr const char* kRegionApiSymbol = "kvpeer_region_api";

}  // namespace kvpeer
