// Reading the arguments that name an extent and a range of its positions.
#pragma once

#include <node_api.h>

#include <cstdint>

#include "core/control.h"
#include "core/mapping.h"
#include "core/napi_args.h"
#include "zmq/messages.h"

namespace kvpeer {

constexpr uint64_t kMaxOffset = (uint64_t{1} << 53) - 1;

// Keeps a message while its keys are read.
using MessageHold = std::shared_ptr<zmq::Message>;

// Points the extent to the keys in its message, if it has one; otherwise says what is wrong.
inline const char* findMessageKeys(const ControlMap& control, Extent* extent, MessageHold* hold) {
  if (extent->keysMessage == 0) return nullptr;
  if (hold == nullptr) return "the extent's keys are in a message";
  *hold = zmq::findMessage(extent->keysMessage);
  if (*hold == nullptr) return "the extent names a message that is not kept";
  const uint64_t bytes = (*hold)->size();
  const uint64_t stride = extent->keyStride;
  const uint64_t keyArea = extent->count == 0 ? 0 : (extent->count - 1) * stride + control.keyBytes;
  if (stride < control.keyBytes || extent->messageKeysOffset > bytes || keyArea > bytes - extent->messageKeysOffset) {
    return "the extent's keys are not inside the message";
  }
  extent->keys = (*hold)->data() + extent->messageKeysOffset;
  return nullptr;
}

// Arguments 0 and `extentAt`: control handle and extent offset. With `hold` the keys may be in a message.
template <size_t Count>
const ControlMap* readTarget(napi_env env, Arguments<Count>& args, size_t extentAt, bool needsKeys, Extent* extent,
                             MessageHold* hold = nullptr) {
  const uint32_t handle = args.uint32(0, "control");
  const uint64_t offset = args.integer(extentAt, "extent", 0, kMaxOffset);
  if (!args.ok()) return nullptr;
  const ControlMap* control = findControl(env, handle);
  if (control == nullptr) {
    args.failRange("no such control mapping");
    return nullptr;
  }
  const char* error = readExtent(*control, offset, needsKeys, extent);
  if (error == nullptr) error = findMessageKeys(*control, extent, hold);
  if (error != nullptr) args.failRange(error);
  return args.ok() ? control : nullptr;
}

// Arguments `at` and `at` + 1: first position and count, -1 meaning to the end.
template <size_t Count>
void readRange(Arguments<Count>& args, size_t at, const Extent& extent, uint32_t* first, uint32_t* end) {
  const uint64_t start = args.integer(at, "first", 0, kMaxExtentKeys);
  const int64_t count = args.integerOrMinusOne(at + 1, "count", kMaxExtentKeys);
  if (!args.ok()) return;
  if (start > extent.count || (count >= 0 && static_cast<uint64_t>(count) > extent.count - start)) {
    return args.failRange("the range is not inside the extent");
  }
  *first = static_cast<uint32_t>(start);
  *end = count < 0 ? extent.count : static_cast<uint32_t>(start) + static_cast<uint32_t>(count);
}

}  // namespace kvpeer
