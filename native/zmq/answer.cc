// See answer.h. Every value takes its shortest form.

#include "zmq/answer.h"

#include <cstring>
#include <string_view>

namespace kvpeer::zmq {
namespace {

// A map of six. Split where a hexadecimal digit would follow an escape.
constexpr std::string_view kHead = "\x86\xa4type\xab" "lookup_resp\xadkv_request_id";
constexpr std::string_view kKeysAndHits = "\xa4keys\x90\xa4hits";
constexpr std::string_view kRoundSeq = "\xa9round_seq";
constexpr std::string_view kLookupSeq = "\xaalookup_seq";

size_t textHeadBytes(size_t length) { return length < 32 ? 1 : length <= 0xff ? 2 : length <= 0xffff ? 3 : 5; }
size_t listHeadBytes(size_t count) { return count < 16 ? 1 : count <= 0xffff ? 3 : 5; }
size_t intBytes(uint64_t value) {
  return value < 0x80 ? 1 : value <= 0xff ? 2 : value <= 0xffff ? 3 : value <= 0xffffffff ? 5 : 9;
}

uint8_t* put(uint8_t* at, const void* bytes, size_t count) {
  memcpy(at, bytes, count);
  return at + count;
}
uint8_t* put(uint8_t* at, std::string_view text) { return put(at, text.data(), text.size()); }

uint8_t* putNumber(uint8_t* at, uint64_t value, size_t width) {
  for (size_t shift = width; shift > 0; --shift) *at++ = static_cast<uint8_t>(value >> (8 * (shift - 1)));
  return at;
}

uint8_t* putInt(uint8_t* at, uint64_t value) {
  const size_t width = intBytes(value) - 1;
  if (width == 0) {
    *at++ = static_cast<uint8_t>(value);
    return at;
  }
  *at++ = width == 1 ? 0xcc : width == 2 ? 0xcd : width == 4 ? 0xce : 0xcf;
  return putNumber(at, value, width);
}

uint8_t* putListHead(uint8_t* at, size_t count) {
  const size_t width = listHeadBytes(count) - 1;
  if (width == 0) {
    *at++ = static_cast<uint8_t>(0x90 | count);
    return at;
  }
  *at++ = width == 2 ? 0xdc : 0xdd;
  return putNumber(at, count, width);
}

uint8_t* putText(uint8_t* at, std::string_view text) {
  const size_t width = textHeadBytes(text.size()) - 1;
  if (width == 0) {
    *at++ = static_cast<uint8_t>(0xa0 | text.size());
  } else {
    *at++ = width == 1 ? 0xd9 : width == 2 ? 0xda : 0xdb;
    at = putNumber(at, text.size(), width);
  }
  return put(at, text);
}

}  // namespace

size_t Answer::byteCount() const {
  return kHead.size() + textHeadBytes(kvRequestId.size()) + kvRequestId.size() + kKeysAndHits.size() +
         listHeadBytes(hitCount) + hitCount + kRoundSeq.size() + intBytes(roundSeq) + kLookupSeq.size() +
         intBytes(lookupSeq);
}

void Answer::write(uint8_t* target) const {
  target = put(target, kHead);
  target = putText(target, kvRequestId);
  target = put(target, kKeysAndHits);
  target = putListHead(target, hitCount);
  target = put(target, hits, hitCount);
  target = put(target, kRoundSeq);
  target = putInt(target, roundSeq);
  target = put(target, kLookupSeq);
  putInt(target, lookupSeq);
}

}  // namespace kvpeer::zmq
