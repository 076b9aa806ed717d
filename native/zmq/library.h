// The libzmq that zeromq.js has brought into this process, called directly.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvpeer::zmq {

// zmq_msg_t: 64 bytes whose address must not be shared between threads.
struct alignas(void*) RawMessage {
  unsigned char bytes[64];
};

// name, result, parameters of the zmq_ functions that are used here.
#define KVPEER_ZMQ_FUNCTIONS(X)                                  \
  X(ctx_new, void*, (void))                                      \
  X(ctx_set, int, (void* context, int option, int value))        \
  X(ctx_term, int, (void* context))                              \
  X(socket, void*, (void* context, int type))                    \
  X(close, int, (void* socket))                                  \
  X(setsockopt, int, (void*, int option, const void*, size_t))   \
  X(getsockopt, int, (void*, int option, void*, size_t*))        \
  X(bind, int, (void* socket, const char* endpoint))             \
  X(connect, int, (void* socket, const char* endpoint))          \
  X(send, int, (void* socket, const void*, size_t, int flags))   \
  X(socket_monitor, int, (void*, const char* endpoint, int events)) \
  X(msg_init, int, (RawMessage*))                                \
  X(msg_init_size, int, (RawMessage*, size_t))                   \
  X(msg_send, int, (RawMessage*, void* socket, int flags))       \
  X(msg_recv, int, (RawMessage*, void* socket, int flags))       \
  X(msg_data, void*, (RawMessage*))                              \
  X(msg_size, size_t, (const RawMessage*))                       \
  X(msg_more, int, (const RawMessage*))                          \
  X(msg_close, int, (RawMessage*))                               \
  X(errno, int, (void))                                          \
  X(strerror, const char*, (int number))

struct Functions {
#define KVPEER_ZMQ_MEMBER(name, result, parameters) result(*name##_) parameters = nullptr;
  KVPEER_ZMQ_FUNCTIONS(KVPEER_ZMQ_MEMBER)
#undef KVPEER_ZMQ_MEMBER
};

// From libzmq's zmq.h.
constexpr int kPair = 0;
constexpr int kDealer = 5;
constexpr int kRouter = 6;
constexpr int kDontWait = 1;
constexpr int kPollIn = 1;
constexpr int kPollOut = 2;
constexpr int kContextMaxSockets = 2;
constexpr int kOptionRoutingId = 5;
constexpr int kOptionFd = 14;
constexpr int kOptionEvents = 15;
constexpr int kOptionLinger = 17;
constexpr int kOptionReconnectInterval = 18;
constexpr int kOptionMaxMessageBytes = 22;
constexpr int kOptionSendHighWaterMark = 23;
constexpr int kOptionReceiveHighWaterMark = 24;
constexpr int kOptionLastEndpoint = 32;
constexpr int kOptionIpv6 = 42;
constexpr int kOptionRouterHandover = 56;
constexpr int kOptionHeartbeatInterval = 75;
constexpr int kOptionHeartbeatTimeToLive = 76;
constexpr int kOptionHeartbeatTimeout = 77;
// Of the draft API.
constexpr int kOptionDisconnectMessage = 111;

// Events of a monitored socket.
constexpr int kEventClosed = 0x80;
constexpr int kEventDisconnected = 0x200;
constexpr int kEventHandshakeFailedNoDetail = 0x800;
constexpr int kEventHandshakeSucceeded = 0x1000;
constexpr int kEventHandshakeFailedProtocol = 0x2000;
constexpr int kEventHandshakeFailedAuth = 0x4000;

// nullptr when no loaded library offers all of them: zeromq.js was not loaded before, or hides them.
const Functions* functions();

}  // namespace kvpeer::zmq
