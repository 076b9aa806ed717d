// See lookup.h. Bounds: `left()` is checked before every read.

#include "zmq/lookup.h"

#include <cstring>
#include <string_view>

namespace kvpeer::zmq {
namespace {

constexpr uint8_t kBin8 = 0xc4;
constexpr uint8_t kBin32 = 0xc6;
constexpr double kMaxCount = 9007199254740991;  // 2^53 - 1

class Cursor {
 public:
  Cursor(const uint8_t* data, size_t bytes) : data_(data), bytes_(bytes) {}

  size_t at() const { return at_; }
  size_t left() const { return bytes_ - at_; }
  bool isAtEnd() const { return at_ == bytes_; }

  bool byte(uint8_t* value) {
    if (left() < 1) return false;
    *value = data_[at_++];
    return true;
  }

  bool skip(size_t count) {
    if (left() < count) return false;
    at_ += count;
    return true;
  }

  bool number(size_t width, uint64_t* value) {
    if (left() < width) return false;
    *value = 0;
    for (size_t i = 0; i < width; ++i) *value = (*value << 8) | data_[at_ + i];
    at_ += width;
    return true;
  }

  // A string; borrowed.
  bool text(std::string_view* value) {
    uint8_t head = 0;
    uint64_t length = 0;
    if (!byte(&head)) return false;
    if ((head & 0xe0) == 0xa0) {
      length = head & 0x1f;
    } else if (head != 0xd9 && head != 0xda) {
      return false;
    } else if (!number(head == 0xd9 ? 1 : 2, &length)) {
      return false;
    }
    if (left() < length) return false;
    *value = std::string_view(reinterpret_cast<const char*>(data_ + at_), length);
    at_ += length;
    return true;
  }

  bool count(double* value) {
    uint8_t head = 0;
    uint64_t number64 = 0;
    if (!byte(&head)) return false;
    if (head < 0x80) {
      number64 = head;
    } else if (head < 0xcc || head > 0xcf) {
      return false;
    } else if (!number(size_t{1} << (head - 0xcc), &number64)) {
      return false;
    }
    *value = static_cast<double>(number64);
    return *value <= kMaxCount;
  }

  bool isAtBin() const { return left() > 0 && data_[at_] >= kBin8 && data_[at_] <= kBin32; }

  bool binHead(uint64_t* bytes) {
    uint8_t head = 0;
    return byte(&head) && number(size_t{1} << (head - kBin8), bytes);
  }

  bool listHead(uint64_t* count) {
    uint8_t head = 0;
    if (!byte(&head)) return false;
    if ((head & 0xf0) == 0x90) {
      *count = head & 0x0f;
      return true;
    }
    return (head == 0xdc || head == 0xdd) && number(head == 0xdc ? 2 : 4, count);
  }

 private:
  const uint8_t* data_;
  size_t bytes_;
  size_t at_ = 0;
};

bool isAscii(std::string_view text) {
  uint8_t all = 0;
  for (const char each : text) all |= static_cast<uint8_t>(each);
  return all < 0x80;
}

// One bin, keys back to back: none of them is looked at.
bool readPackedKeys(Cursor& cursor, const LookupLimits& limits, Lookup* lookup) {
  uint64_t bytes = 0;
  if (!cursor.binHead(&bytes) || bytes == 0 || bytes % limits.keyBytes != 0) return false;
  if (bytes / limits.keyBytes > limits.keyCount) return false;
  lookup->first = cursor.at();
  lookup->stride = limits.keyBytes;
  lookup->keyCount = static_cast<uint32_t>(bytes / limits.keyBytes);
  if (!cursor.skip(bytes)) return false;
  lookup->keysEnd = cursor.at();
  return true;
}

bool readKeys(const uint8_t* data, Cursor& cursor, const LookupLimits& limits, Lookup* lookup) {
  uint64_t count = 0;
  lookup->keysStart = cursor.at();
  if (cursor.isAtBin()) return readPackedKeys(cursor, limits, lookup);
  if (!cursor.listHead(&count) || count == 0 || count > limits.keyCount) return false;
  lookup->stride = 2 + size_t{limits.keyBytes};
  const size_t heads = cursor.at();
  if (!cursor.skip(count * lookup->stride)) return false;
  // One value to compare with, and no branch per key.
  const auto headAt = [&](uint64_t key) {
    uint16_t head;
    memcpy(&head, data + heads + key * lookup->stride, sizeof head);
    return head;
  };
  const uint8_t wantedBytes[2] = {kBin8, static_cast<uint8_t>(limits.keyBytes)};
  uint16_t wanted;
  memcpy(&wanted, wantedBytes, sizeof wanted);
  uint16_t difference = 0;
  for (uint64_t key = 0; key < count; ++key) difference |= headAt(key) ^ wanted;
  if (difference != 0) return false;
  lookup->first = heads + 2;
  lookup->keyCount = static_cast<uint32_t>(count);
  lookup->keysEnd = cursor.at();
  return true;
}

bool readId(Cursor& cursor, uint32_t maxBytes, size_t* start, size_t* bytes) {
  std::string_view id;
  if (!cursor.text(&id) || id.empty() || id.size() > maxBytes || !isAscii(id)) return false;
  *bytes = id.size();
  *start = cursor.at() - id.size();
  return true;
}

bool readType(Cursor& cursor, std::string_view wanted) {
  std::string_view type;
  return cursor.text(&type) && type == wanted;
}

bool readEmptyList(Cursor& cursor) {
  uint64_t count = 0;
  return cursor.listHead(&count) && count == 0;
}

enum Field : unsigned { kUnknown = 0, kType = 1, kId = 2, kKeys = 4, kRound = 8, kTtl = 16, kSeq = 32, kIndexes = 64 };

Field fieldOf(std::string_view name) {
  if (name == "type") return kType;
  if (name == "kv_request_id") return kId;
  if (name == "keys") return kKeys;
  if (name == "round_seq") return kRound;
  if (name == "ttl_ms") return kTtl;
  if (name == "lookup_seq") return kSeq;
  if (name == "block_indexes") return kIndexes;
  return kUnknown;
}

// Walks a map of these fields, each once; `read(field)` reads a value.
template <typename Read>
bool readMap(Cursor& cursor, unsigned allowed, unsigned required, Read read) {
  uint8_t head = 0;
  if (!cursor.byte(&head) || (head & 0xf0) != 0x80) return false;
  unsigned seen = 0;
  for (unsigned left = head & 0x0f; left > 0; --left) {
    std::string_view name;
    if (!cursor.text(&name)) return false;
    const Field field = fieldOf(name);
    if ((field & allowed) == 0 || (field & seen) != 0 || !read(field)) return false;
    seen |= field;
  }
  return (seen & required) == required && cursor.isAtEnd();
}

}  // namespace

bool readLookup(const uint8_t* data, size_t bytes, const LookupLimits& limits, Lookup* lookup) {
  Cursor cursor(data, bytes);
  constexpr unsigned kRequired = kType | kId | kKeys | kRound;
  return readMap(cursor, kRequired | kTtl | kSeq, kRequired, [&](Field field) {
    switch (field) {
      case kType:
        return readType(cursor, "lookup");
      case kId:
        return readId(cursor, limits.idBytes, &lookup->idStart, &lookup->idBytes);
      case kKeys:
        return readKeys(data, cursor, limits, lookup);
      case kRound:
        return cursor.count(&lookup->roundSeq);
      case kTtl:
        return cursor.count(&lookup->ttlMs);
      default:
        return cursor.count(&lookup->lookupSeq);
    }
  });
}

bool readFinish(const uint8_t* data, size_t bytes, uint32_t maxIdBytes, Finish* finish) {
  Cursor cursor(data, bytes);
  double ignored = 0;
  constexpr unsigned kRequired = kType | kId | kKeys | kIndexes | kRound;
  return readMap(cursor, kRequired | kTtl, kRequired, [&](Field field) {
    switch (field) {
      case kType:
        return readType(cursor, "fetch");
      case kId:
        return readId(cursor, maxIdBytes, &finish->idStart, &finish->idBytes);
      case kKeys:
      case kIndexes:
        return readEmptyList(cursor);
      case kRound:
        return cursor.count(&finish->roundSeq);
      default:
        return cursor.count(&ignored);
    }
  });
}

}  // namespace kvpeer::zmq
