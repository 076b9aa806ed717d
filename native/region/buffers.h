// Buffers of JavaScript that native code of other threads may read: held by token, whatever the script does to them.
#pragma once

#include <v8.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace kvpeer {

// Never 0. The shared backing store keeps the memory alive when the ArrayBuffer is detached or collected.
uint64_t holdBuffer(std::shared_ptr<v8::BackingStore> store, size_t offset, size_t bytes);
// False for an unknown token.
bool dropBuffer(uint64_t token);

// RegionApi's calls, see region_api.h.
void* borrowBuffer(uint64_t token, const uint8_t** data, size_t* bytes);
void giveBackBuffer(void* borrowed);

}  // namespace kvpeer
