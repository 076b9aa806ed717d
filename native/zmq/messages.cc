// The table of kept messages, see messages.h.

#include "zmq/messages.h"

#include <mutex>
#include <unordered_map>

namespace kvpeer::zmq {
namespace {

constexpr uint32_t kMaxToken = (uint32_t{1} << 31) - 1;

std::mutex tableMutex;
uint32_t lastToken = 0;

// Never destroyed: workers may read while the process exits.
std::unordered_map<uint32_t, std::shared_ptr<Message>>& table() {
  static auto* messages = new std::unordered_map<uint32_t, std::shared_ptr<Message>>();
  return *messages;
}

}  // namespace

uint32_t keepMessage(std::shared_ptr<Message> message) {
  std::lock_guard<std::mutex> lock(tableMutex);
  do {
    lastToken = lastToken == kMaxToken ? 1 : lastToken + 1;
  } while (!table().emplace(lastToken, message).second);
  return lastToken;
}

std::shared_ptr<Message> findMessage(uint32_t token) {
  std::lock_guard<std::mutex> lock(tableMutex);
  const auto found = table().find(token);
  return found == table().end() ? nullptr : found->second;
}

bool dropMessage(uint32_t token) {
  std::shared_ptr<Message> last;
  std::lock_guard<std::mutex> lock(tableMutex);
  const auto found = table().find(token);
  if (found == table().end()) return false;
  // Its memory is given back after the lock.
  last = std::move(found->second);
  table().erase(found);
  return true;
}

size_t keptMessageCount() {
  std::lock_guard<std::mutex> lock(tableMutex);
  return table().size();
}

}  // namespace kvpeer::zmq
