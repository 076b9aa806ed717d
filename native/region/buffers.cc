// Held buffers, see buffers.h.

#include "region/buffers.h"

#include <mutex>
#include <unordered_map>

namespace kvpeer {
namespace {

struct Held {
  std::shared_ptr<v8::BackingStore> store;
  size_t offset = 0;
  size_t bytes = 0;
};

std::mutex tableMutex;
uint64_t lastToken = 0;

std::unordered_map<uint64_t, Held>& table() {
  static auto* entries = new std::unordered_map<uint64_t, Held>();
  return *entries;
}

}  // namespace

uint64_t holdBuffer(std::shared_ptr<v8::BackingStore> store, size_t offset, size_t bytes) {
  std::lock_guard<std::mutex> lock(tableMutex);
  lastToken += 1;
  table()[lastToken] = Held{std::move(store), offset, bytes};
  return lastToken;
}

bool dropBuffer(uint64_t token) {
  Held dropped;  // its memory is freed outside the lock
  std::lock_guard<std::mutex> lock(tableMutex);
  const auto found = table().find(token);
  if (found == table().end()) return false;
  dropped = std::move(found->second);
  table().erase(found);
  return true;
}

void* borrowBuffer(uint64_t token, const uint8_t** data, size_t* bytes) {
  std::lock_guard<std::mutex> lock(tableMutex);
  const auto found = table().find(token);
  if (found == table().end()) return nullptr;
  *data = static_cast<const uint8_t*>(found->second.store->Data()) + found->second.offset;
  *bytes = found->second.bytes;
  return new std::shared_ptr<v8::BackingStore>(found->second.store);
}

void giveBackBuffer(void* borrowed) { delete static_cast<std::shared_ptr<v8::BackingStore>*>(borrowed); }

}  // namespace kvpeer
