// The Node-API face of a DEALER, see dealer.h.
//
//     sendDealer() --> libzmq's queue (SNDHWM) --> its I/O thread --> TCP
//                  <-- "writable" when a frame fits again
//     events: libzmq tells a monitor socket, whose descriptor the loop watches

#include "zmq/dealer.h"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>

#include "core/napi_args.h"
#include "zmq/answer.h"
#include "zmq/loop_socket.h"
#include "zmq/messages.h"

namespace kvpeer::zmq {
namespace {

constexpr size_t kMaxIdentityBytes = 255;
// libzmq keeps the time-to-live in tenths of a second, in 16 bits.
constexpr uint64_t kMaxHeartbeatMs = 6553599;
constexpr size_t kMaxIdBytes = 65535;
constexpr uint64_t kMaxCount = (uint64_t{1} << 53) - 1;

// What the callback is told; DealerEvent in native/zmq.ts.
enum Event : uint32_t {
  kConnected = 1,
  kAttemptFailed = 2,
  kDisconnected = 3,
  kHandshakeFailed = 4,
  kUnexpectedFrame = 5,
  kWritable = 6,
};

// What sendDealer() returns: bits.
enum SendResult : uint32_t { kSent = 1, kHasInbound = 2 };

std::atomic<uint64_t> lastMonitor{0};

class Dealer : public Socket {
 public:
  static constexpr ObjectKind kKind = ObjectKind::kDealer;
  Dealer(Context& context, napi_value callback)
      : Socket(kKind, context, zmq::kDealer), callback_(context.env, callback, "kvpeer:dealer") {}

  // False: libzmq's error number says why.
  bool watchEvents() {
    constexpr int kWatched = kEventClosed | kEventDisconnected | kEventHandshakeFailedNoDetail |
                             kEventHandshakeSucceeded | kEventHandshakeFailedProtocol | kEventHandshakeFailedAuth;
    const std::string endpoint = "inproc://kvpeer-dealer-" + std::to_string(++lastMonitor);
    if (library.socket_monitor_(socket, endpoint.c_str(), kWatched) != 0) return false;
    monitor_ = library.socket_(context_.context, kPair);
    const int noLinger = 0;
    if (monitor_ == nullptr || library.setsockopt_(monitor_, kOptionLinger, &noLinger, sizeof noLinger) != 0 ||
        library.connect_(monitor_, endpoint.c_str()) != 0) {
      return false;
    }
    // A descriptor tells of what comes after the first look only.
    Message none(library);
    none.receive(monitor_, kDontWait);
    return watch(monitor_) && watch(socket);
  }

  bool connect(const std::string& endpoint) {
    const bool isDone = library.connect_(socket, endpoint.c_str()) == 0;
    if (isDone) eventsNow();
    return isDone;
  }

  // Frame or answer are copied. Sending makes the socket look at its news, after which the descriptor may not tell of them.
  uint32_t send(const void* frame, size_t bytes) {
    RawMessage message;
    if (library.msg_init_size_(&message, bytes) != 0) return 0;
    if (bytes > 0) memcpy(library.msg_data_(&message), frame, bytes);
    return send(message);
  }
  uint32_t send(const Answer& answer) {
    RawMessage message;
    if (library.msg_init_size_(&message, answer.byteCount()) != 0) return 0;
    answer.write(static_cast<uint8_t*>(library.msg_data_(&message)));
    return send(message);
  }

 protected:
  void onReadable(void* readable) override {
    if (readable == monitor_) {
      readEvents();
    } else {
      look();
    }
  }

  void closeSockets() override {
    if (monitor_ != nullptr) {
      library.socket_monitor_(socket, nullptr, 0);
      library.close_(monitor_);
    }
    Socket::closeSockets();
  }

 private:
  uint32_t send(RawMessage& message) {
    for (;;) {
      const bool isSent = library.msg_send_(&message, socket, kDontWait) >= 0;
      const int number = isSent ? 0 : library.errno_();
      if (number == EINTR) continue;
      const int events = eventsNow();
      // Room that has appeared meanwhile: the descriptor will not tell of it any more.
      if (number == EAGAIN && (events & kPollOut) != 0) continue;
      if (!isSent) library.msg_close_(&message);
      waitsForRoom_ = !isSent;
      return (isSent ? kSent : 0u) | ((events & kPollIn) != 0 ? kHasInbound : 0u);
    }
  }

  // False: the callback has closed this object.
  bool tell(Event event) {
    const uint64_t self = handle;
    callback_.call(event);
    return loopObjects().count(self) != 0;
  }

  void look() {
    const int events = eventsNow();
    if ((events & kPollIn) != 0) {
      Message unexpected(library);
      while (unexpected.receive(socket, kDontWait) < 0 && library.errno_() == EINTR) {
      }
      if (!tell(kUnexpectedFrame)) return;
    }
    if (waitsForRoom_ && (events & kPollOut) != 0) {
      waitsForRoom_ = false;
      tell(kWritable);
    }
  }

  void readEvents() {
    for (;;) {
      Message head(library);
      while (head.receive(monitor_, kDontWait) < 0) {
        if (library.errno_() != EINTR) return;
      }
      uint16_t event = 0;
      if (head.size() >= sizeof event) memcpy(&event, head.data(), sizeof event);
      // The endpoint, which nobody needs.
      for (bool hasMore = head.hasMore(); hasMore;) {
        Message rest(library);
        if (rest.receive(monitor_, 0) < 0) break;
        hasMore = rest.hasMore();
      }
      if (!tell(meaning(event))) return;
    }
  }

  static Event meaning(uint16_t event) {
    switch (event) {
      case kEventHandshakeSucceeded:
        return kConnected;
      case kEventClosed:
        return kAttemptFailed;
      case kEventDisconnected:
        return kDisconnected;
      default:
        return kHandshakeFailed;
    }
  }

  LoopCallback callback_;
  void* monitor_ = nullptr;
  bool waitsForRoom_ = false;
};

// createDealer(context, onEvent, routingId, heartbeatMs, heartbeatTimeoutMs, sendHighWaterMark, maxInboundBytes, ipv6)
napi_value createDealer(napi_env env, napi_callback_info info) {
  Arguments<8> args(env, info, "createDealer");
  auto* context = ownObject<Context>(args, 0, "context");
  checkFunction(env, args, 1);
  const std::string routingId = args.string(2, "routingId", kMaxIdentityBytes);
  const auto heartbeatMs = static_cast<int>(args.integer(3, "heartbeatMs", 1, kMaxHeartbeatMs));
  const auto timeoutMs = static_cast<int>(args.integer(4, "heartbeatTimeoutMs", 1, kMaxHeartbeatMs));
  const auto sendHighWaterMark = static_cast<int>(args.integer(5, "sendHighWaterMark", 1, INT32_MAX));
  const auto maxInboundBytes = static_cast<int64_t>(args.integer(6, "maxInboundBytes", 1, INT32_MAX));
  const bool isIpv6 = args.boolean(7, "ipv6");
  if (args.ok() && routingId.empty()) args.failRange("routingId must not be empty");
  if (!args.ok()) return nullptr;

  auto* dealer = new Dealer(*context, args.value(1));
  dealer->enlist();
  // An inbound queue that cannot fill up, of frames that cannot be large: a full one could be made to abort the process
  // (src/main/control/transport.ts on heartbeats). A connection that ended is dead for good.
  if (dealer->socket == nullptr || !dealer->set(kOptionRoutingId, routingId.data(), routingId.size()) ||
      !dealer->set(kOptionHeartbeatInterval, heartbeatMs) || !dealer->set(kOptionHeartbeatTimeout, timeoutMs) ||
      !dealer->set(kOptionHeartbeatTimeToLive, timeoutMs) ||
      !dealer->set(kOptionSendHighWaterMark, sendHighWaterMark) || !dealer->set(kOptionReceiveHighWaterMark, 0) ||
      !dealer->set(kOptionMaxMessageBytes, &maxInboundBytes, sizeof maxInboundBytes) ||
      !dealer->set(kOptionReconnectInterval, -1) || !dealer->set(kOptionLinger, 0) ||
      !dealer->set(kOptionIpv6, isIpv6 ? 1 : 0) || !dealer->watchEvents()) {
    throwZmq(env, context->library, "createDealer");
    dealer->close();
    return nullptr;
  }
  return toNumber(env, static_cast<double>(dealer->handle));
}

// connectDealer(dealer, endpoint)
napi_value connectDealer(napi_env env, napi_callback_info info) {
  Arguments<2> args(env, info, "connectDealer");
  auto* dealer = ownObject<Dealer>(args, 0, "dealer");
  const std::string endpoint = args.string(1, "endpoint", 1024);
  if (!args.ok()) return nullptr;
  return dealer->connect(endpoint) ? nullptr : throwZmq(env, dealer->library, "connect");
}

// sendDealer(dealer, frame: Uint8Array) -> SendResult
napi_value sendDealer(napi_env env, napi_callback_info info) {
  Arguments<2> args(env, info, "sendDealer");
  auto* dealer = ownObject<Dealer>(args, 0, "dealer");
  size_t bytes = 0;
  const void* frame = args.typedArray(1, "frame", napi_uint8_array, &bytes);
  if (!args.ok()) return nullptr;
  return toNumber(env, dealer->send(frame, bytes));
}

// sendAnswer(dealer, kvRequestId, hits: Uint8Array, roundSeq, lookupSeq) -> SendResult
napi_value sendAnswer(napi_env env, napi_callback_info info) {
  Arguments<5> args(env, info, "sendAnswer");
  auto* dealer = ownObject<Dealer>(args, 0, "dealer");
  Answer answer;
  answer.kvRequestId = args.string(1, "kvRequestId", kMaxIdBytes);
  answer.hits = static_cast<const uint8_t*>(args.typedArray(2, "hits", napi_uint8_array, &answer.hitCount));
  answer.roundSeq = args.integer(3, "roundSeq", 0, kMaxCount);
  answer.lookupSeq = args.integer(4, "lookupSeq", 0, kMaxCount);
  if (!args.ok()) return nullptr;
  return toNumber(env, dealer->send(answer));
}

// closeDealer(dealer)
napi_value closeDealer(napi_env env, napi_callback_info info) {
  Arguments<1> args(env, info, "closeDealer");
  auto* dealer = ownObject<Dealer>(args, 0, "dealer");
  if (args.ok()) dealer->close();
  return nullptr;
}

}  // namespace

void registerDealerFunctions(napi_env env, napi_value exports) {
  exportFunction(env, exports, "createDealer", createDealer);
  exportFunction(env, exports, "connectDealer", connectDealer);
  exportFunction(env, exports, "sendDealer", sendDealer);
  exportFunction(env, exports, "sendAnswer", sendAnswer);
  exportFunction(env, exports, "closeDealer", closeDealer);
}

}  // namespace kvpeer::zmq
