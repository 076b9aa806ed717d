// The Node-API face of the receiver, see receiver.h.
//
// libzmq's I/O thread puts arrived messages into the socket's queue and makes a descriptor readable; libuv tells this
// thread, and receive() takes the messages one by one. Lookups are read where they lie, and their memory is kept for
// the worker that matches the keys: no byte of a key passes through JavaScript.

#include "zmq/receiver.h"

#include <cerrno>
#include <memory>
#include <string>

#include "core/napi_args.h"
#include "zmq/lookup.h"
#include "zmq/loop_socket.h"
#include "zmq/message_bindings.h"
#include "zmq/messages.h"

namespace kvpeer::zmq {
namespace {

constexpr uint64_t kMaxMessageBytes = uint64_t{1} << 40;

class Receiver : public Socket {
 public:
  static constexpr ObjectKind kKind = ObjectKind::kReceiver;
  Receiver(Context& context, napi_value callback, const LookupLimits& lookupLimits)
      : Socket(kKind, context, kRouter), limits(lookupLimits), callback_(context.env, callback, "kvpeer:receiver") {}

  bool isBound = false;
  const LookupLimits limits;
  // Routing id of the last message.
  std::string from;

  bool watchSocket() { return watch(socket); }

 protected:
  void onReadable(void*) override { callback_.call(0); }

 private:
  LoopCallback callback_;
};

// createReceiver(context, onReadable, maxMessageBytes, keyBytes, maxKeys, maxIdBytes, notice: Uint8Array)
//   -> { handle, reportsPeerGone }
napi_value createReceiver(napi_env env, napi_callback_info info) {
  Arguments<7> args(env, info, "createReceiver");
  auto* context = ownObject<Context>(args, 0, "context");
  checkFunction(env, args, 1);
  const auto maxMessageBytes = static_cast<int64_t>(args.integer(2, "maxMessageBytes", 1, kMaxMessageBytes));
  LookupLimits limits;
  limits.keyBytes = static_cast<uint32_t>(args.integer(3, "keyBytes", 1, kMaxKeyBytes));
  limits.keyCount = static_cast<uint32_t>(args.integer(4, "maxKeys", 1, INT32_MAX));
  limits.idBytes = static_cast<uint32_t>(args.integer(5, "maxIdBytes", 1, INT32_MAX));
  size_t noticeBytes = 0;
  const void* notice = args.typedArray(6, "notice", napi_uint8_array, &noticeBytes);
  if (!args.ok()) return nullptr;

  auto* receiver = new Receiver(*context, args.value(1), limits);
  receiver->enlist();
  // Never throttled, and no heartbeats of its own: why, is in src/main/control/transport.ts.
  if (receiver->socket == nullptr || !receiver->set(kOptionLinger, 0) ||
      !receiver->set(kOptionReceiveHighWaterMark, 0) || !receiver->set(kOptionRouterHandover, 1) ||
      !receiver->set(kOptionMaxMessageBytes, &maxMessageBytes, sizeof maxMessageBytes)) {
    throwZmq(env, context->library, "createReceiver");
    receiver->close();
    return nullptr;
  }
  const bool reportsPeerGone = receiver->set(kOptionDisconnectMessage, notice, noticeBytes);
  napi_value result = nullptr;
  napi_create_object(env, &result);
  setProperty(env, result, "handle", toNumber(env, static_cast<double>(receiver->handle)));
  setProperty(env, result, "reportsPeerGone", toBoolean(env, reportsPeerGone));
  return result;
}

// bindReceiver(receiver, endpoint, ipv6) -> the endpoint bound
napi_value bindReceiver(napi_env env, napi_callback_info info) {
  Arguments<3> args(env, info, "bindReceiver");
  auto* receiver = ownObject<Receiver>(args, 0, "receiver");
  const std::string endpoint = args.string(1, "endpoint", 1024);
  const bool isIpv6 = args.boolean(2, "ipv6");
  if (args.ok() && receiver->isBound) args.fail("it is bound already");
  if (!args.ok()) return nullptr;
  const Functions& library = receiver->library;
  char bound[1024] = {};
  size_t boundBytes = sizeof bound;
  if (!receiver->set(kOptionIpv6, isIpv6 ? 1 : 0) || library.bind_(receiver->socket, endpoint.c_str()) != 0 ||
      library.getsockopt_(receiver->socket, kOptionLastEndpoint, bound, &boundBytes) != 0) {
    return throwZmq(env, library, "bind");
  }
  receiver->isBound = true;
  if (!receiver->watchSocket()) return throwError(env, "bindReceiver: this thread's event loop takes no more handles");
  return toText(env, bound);
}

// receive(receiver, fields: Float64Array) -> undefined, the payload, or the id of a lookup or finish
napi_value receive(napi_env env, napi_callback_info info) {
  Arguments<2> args(env, info, "receive");
  auto* receiver = ownObject<Receiver>(args, 0, "receiver");
  size_t fieldCount = 0;
  auto* fields = static_cast<double*>(args.typedArray(1, "fields", napi_float64_array, &fieldCount));
  if (args.ok() && fieldCount < kFieldCount) args.failRange("fields is too short");
  if (!args.ok()) return nullptr;
  const Functions& library = receiver->library;
  fields[kFieldKind] = kNone;

  Message identity(library);
  while (identity.receive(receiver->socket, kDontWait) < 0) {
    const int number = library.errno_();
    if (number == EAGAIN) return nullptr;
    if (number != EINTR) return throwZmq(env, library, "receive");
  }
  receiver->from.assign(reinterpret_cast<const char*>(identity.data()), identity.size());
  // The parts of a message arrive together.
  std::shared_ptr<Message> payload;
  size_t partCount = 0;
  for (bool hasMore = identity.hasMore(); hasMore; ++partCount) {
    auto part = std::make_shared<Message>(library);
    while (part->receive(receiver->socket, 0) < 0) {
      if (library.errno_() != EINTR) return throwZmq(env, library, "receive");
    }
    hasMore = part->hasMore();
    if (partCount == 0) payload = std::move(part);
  }
  fields[kFieldPartCount] = static_cast<double>(partCount);
  if (partCount != 1) {
    fields[kFieldKind] = kWrongParts;
    return nullptr;
  }
  napi_value id = readUsual(env, payload->data(), payload->size(), receiver->limits, fields);
  const auto kind = static_cast<uint32_t>(fields[kFieldKind]);
  if (kind == kLookup) fields[kFieldToken] = keepMessage(std::move(payload));
  return kind == kMessage ? bufferOf(env, payload) : id;
}

// receivedFrom(receiver) -> the routing id of the last message, a latin1 string
napi_value receivedFrom(napi_env env, napi_callback_info info) {
  Arguments<1> args(env, info, "receivedFrom");
  auto* receiver = ownObject<Receiver>(args, 0, "receiver");
  if (!args.ok()) return nullptr;
  return latin1Text(env, reinterpret_cast<const uint8_t*>(receiver->from.data()), receiver->from.size());
}

napi_value closeReceiver(napi_env env, napi_callback_info info) {
  Arguments<1> args(env, info, "closeReceiver");
  auto* receiver = ownObject<Receiver>(args, 0, "receiver");
  if (args.ok()) receiver->close();
  return nullptr;
}

}  // namespace

void registerReceiverFunctions(napi_env env, napi_value exports) {
  exportFunction(env, exports, "createReceiver", createReceiver);
  exportFunction(env, exports, "bindReceiver", bindReceiver);
  exportFunction(env, exports, "receive", receive);
  exportFunction(env, exports, "receivedFrom", receivedFrom);
  exportFunction(env, exports, "closeReceiver", closeReceiver);
}

}  // namespace kvpeer::zmq
