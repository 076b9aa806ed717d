// The bytes of a `lookup_resp` that names its lookup instead of repeating the keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvpeer::zmq {

// What src/main/protocol/write.ts writes for the same values.
struct Answer {
  // UTF-8.
  std::string kvRequestId;
  // The msgpack bytes of true and false, one per key.
  const uint8_t* hits = nullptr;
  size_t hitCount = 0;
  uint64_t roundSeq = 0;
  uint64_t lookupSeq = 0;

  size_t byteCount() const;
  // `target` has room for byteCount() bytes.
  void write(uint8_t* target) const;
};

}  // namespace kvpeer::zmq
