// See message_bindings.h.

#include "zmq/message_bindings.h"

#include "core/napi_args.h"

namespace kvpeer::zmq {
namespace {

// A shorter message is copied: less than making its memory known to V8.
constexpr size_t kCopiedBytes = 4096;

void dropShared(napi_env, void*, void* message) { delete static_cast<std::shared_ptr<Message>*>(message); }

}  // namespace

napi_value bufferOf(napi_env env, const std::shared_ptr<Message>& message) {
  napi_value buffer = nullptr;
  if (message->size() < kCopiedBytes) {
    napi_create_buffer_copy(env, message->size(), message->data(), nullptr, &buffer);
    return buffer;
  }
  auto* shared = new std::shared_ptr<Message>(message);
  auto* data = const_cast<uint8_t*>(message->data());
  if (napi_create_external_buffer(env, message->size(), data, dropShared, shared, &buffer) != napi_ok) {
    delete shared;
    return throwError(env, "the message's memory cannot be handed to JavaScript");
  }
  return buffer;
}

napi_value latin1Text(napi_env env, const uint8_t* data, size_t bytes) {
  napi_value text = nullptr;
  napi_create_string_latin1(env, reinterpret_cast<const char*>(data), bytes, &text);
  return text;
}

napi_value readUsual(napi_env env, const uint8_t* message, size_t bytes, const LookupLimits& limits, double* fields) {
  fields[kFieldPartCount] = 1;
  fields[kFieldBytes] = static_cast<double>(bytes);
  Lookup lookup;
  Finish finish;
  if (readLookup(message, bytes, limits, &lookup)) {
    fields[kFieldKind] = kLookup;
    fields[kFieldKeysStart] = static_cast<double>(lookup.keysStart);
    fields[kFieldKeysEnd] = static_cast<double>(lookup.keysEnd);
    fields[kFieldFirst] = static_cast<double>(lookup.first);
    fields[kFieldStride] = static_cast<double>(lookup.stride);
    fields[kFieldKeyCount] = lookup.keyCount;
    fields[kFieldRoundSeq] = lookup.roundSeq;
    fields[kFieldTtlMs] = lookup.ttlMs;
    fields[kFieldLookupSeq] = lookup.lookupSeq;
    return latin1Text(env, message + lookup.idStart, lookup.idBytes);
  }
  if (readFinish(message, bytes, limits.idBytes, &finish)) {
    fields[kFieldKind] = kFinish;
    fields[kFieldRoundSeq] = finish.roundSeq;
    return latin1Text(env, message + finish.idStart, finish.idBytes);
  }
  fields[kFieldKind] = kMessage;
  return nullptr;
}

namespace {

// readMessage(message: Uint8Array, keyBytes, maxKeys, maxIdBytes, fields) -> the id, or undefined
napi_value readMessage(napi_env env, napi_callback_info info) {
  Arguments<5> args(env, info, "readMessage");
  size_t bytes = 0;
  size_t fieldCount = 0;
  const auto* data = static_cast<const uint8_t*>(args.typedArray(0, "message", napi_uint8_array, &bytes));
  LookupLimits limits;
  limits.keyBytes = static_cast<uint32_t>(args.integer(1, "keyBytes", 1, kMaxKeyBytes));
  limits.keyCount = static_cast<uint32_t>(args.integer(2, "maxKeys", 1, INT32_MAX));
  limits.idBytes = static_cast<uint32_t>(args.integer(3, "maxIdBytes", 1, INT32_MAX));
  auto* fields = static_cast<double*>(args.typedArray(4, "fields", napi_float64_array, &fieldCount));
  if (args.ok() && fieldCount < kFieldCount) args.failRange("fields is too short");
  if (!args.ok()) return nullptr;
  fields[kFieldToken] = 0;
  return readUsual(env, data, bytes, limits, fields);
}

template <size_t Count>
uint32_t tokenOf(Arguments<Count>& args) {
  return static_cast<uint32_t>(args.integer(0, "message", 1, INT32_MAX));
}

// messageBytes(message) -> Buffer; valid also when the message is dropped
napi_value messageBytes(napi_env env, napi_callback_info info) {
  Arguments<1> args(env, info, "messageBytes");
  const uint32_t token = tokenOf(args);
  if (!args.ok()) return nullptr;
  const auto message = findMessage(token);
  if (message == nullptr) {
    args.failRange("no such message is kept");
    return nullptr;
  }
  return bufferOf(env, message);
}

// dropMessage(message)
napi_value dropMessageOf(napi_env env, napi_callback_info info) {
  Arguments<1> args(env, info, "dropMessage");
  const uint32_t token = tokenOf(args);
  if (args.ok() && !dropMessage(token)) args.failRange("no such message is kept");
  return nullptr;
}

napi_value keptMessageCountOf(napi_env env, napi_callback_info) {
  return toNumber(env, static_cast<double>(keptMessageCount()));
}

}  // namespace

void registerMessageFunctions(napi_env env, napi_value exports) {
  exportFunction(env, exports, "readMessage", readMessage);
  exportFunction(env, exports, "messageBytes", messageBytes);
  exportFunction(env, exports, "dropMessage", dropMessageOf);
  exportFunction(env, exports, "keptMessageCount", keptMessageCountOf);
}

}  // namespace kvpeer::zmq
