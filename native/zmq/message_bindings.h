// How a message comes to JavaScript: as the fields of a lookup, or as a Buffer.
#pragma once

#include <node_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "zmq/lookup.h"
#include "zmq/messages.h"

namespace kvpeer::zmq {

constexpr uint32_t kMaxKeyBytes = 64;

// What receive() leaves in its `fields`; ReceivedField in native/zmq.ts.
enum Field : size_t {
  kFieldKind,
  kFieldPartCount,
  kFieldBytes,
  kFieldToken,
  kFieldKeysStart,
  kFieldKeysEnd,
  kFieldFirst,
  kFieldStride,
  kFieldKeyCount,
  kFieldRoundSeq,
  kFieldTtlMs,
  kFieldLookupSeq,
  kFieldCount,
};

enum Kind : uint32_t { kNone = 0, kMessage = 1, kLookup = 2, kWrongParts = 3, kFinish = 4 };

// Reads a Lookup or a Finish: writes kind and fields, but for the token, and returns the id. Any other message: nullptr.
napi_value readUsual(napi_env env, const uint8_t* message, size_t bytes, const LookupLimits& limits, double* fields);

// A Buffer over the message: a copy when it is short, otherwise its memory itself, given back with the Buffer.
napi_value bufferOf(napi_env env, const std::shared_ptr<Message>& message);

// A character per byte.
napi_value latin1Text(napi_env env, const uint8_t* data, size_t bytes);

// Adds readMessage, messageBytes, dropMessage and keptMessageCount.
void registerMessageFunctions(napi_env env, napi_value exports);

}  // namespace kvpeer::zmq
