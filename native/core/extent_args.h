// Reading the arguments that name an extent and a range of its positions.
#pragma once

#include <node_api.h>

#include <cstdint>

#include "core/control.h"
#include "core/mapping.h"
#include "core/napi_args.h"

namespace kvpeer {

constexpr uint64_t kMaxOffset = (uint64_t{1} << 53) - 1;

// Arguments 0 and `extentAt`: control handle and extent offset.
template <size_t Count>
const ControlMap* readTarget(napi_env env, Arguments<Count>& args, size_t extentAt, bool needsKeys, Extent* extent) {
  const uint32_t handle = args.uint32(0, "control");
  const uint64_t offset = args.integer(extentAt, "extent", 0, kMaxOffset);
  if (!args.ok()) return nullptr;
  const ControlMap* control = findControl(env, handle);
  if (control == nullptr) {
    args.failRange("no such control mapping");
    return nullptr;
  }
  const char* error = readExtent(*control, offset, needsKeys, extent);
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
