// Reads what every request sends, in its usual form, where it lies: `lookup` and the end of the request. Every other
// message is left to the scanner in JavaScript.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvpeer::zmq {

// The fields of a lookup. Offsets are bytes from the message's start; key i is at `first + i * stride`.
struct Lookup {
  size_t idStart = 0;
  size_t idBytes = 0;
  size_t keysStart = 0;
  size_t keysEnd = 0;
  size_t first = 0;
  size_t stride = 0;
  uint32_t keyCount = 0;
  double roundSeq = 0;
  // Negative: absent.
  double ttlMs = -1;
  double lookupSeq = -1;
};

struct LookupLimits {
  uint32_t keyBytes = 0;
  uint32_t keyCount = 0;
  uint32_t idBytes = 0;
};

// A `fetch` without keys: the request is finished.
struct Finish {
  size_t idStart = 0;
  size_t idBytes = 0;
  double roundSeq = 0;
};

// As readLookup: true when the message is a finish in which nothing is unusual. Its `ttl_ms` means nothing.
bool readFinish(const uint8_t* data, size_t bytes, uint32_t maxIdBytes, Finish* finish);

// True when the message is a lookup in which nothing is unusual: each known field once and no other, an id in ASCII,
// at least one key, all keys `keyBytes` long with bin 8 headers or packed in one bin, whole numbers that a double holds,
// nothing behind the map. What is read then is what src/main/protocol/scan.ts reads. False says nothing about the message.
bool readLookup(const uint8_t* data, size_t bytes, const LookupLimits& limits, Lookup* lookup);

}  // namespace kvpeer::zmq
