// See loop_socket.h.

#include "zmq/loop_socket.h"

#include <atomic>
#include <cerrno>
#include <string>

namespace kvpeer::zmq {

// libzmq's default of 1,023 would end at 340 peers; descriptors are taken by sockets only, not by this number.
constexpr int kMaxSockets = 65535;

struct LoopObject::Watch {
  uv_poll_t poll;
  LoopObject* object;
  void* socket;
  Leaving* leaving;
};

// What is left of an object whose polls libuv has not let go of yet.
struct LoopObject::Leaving {
  napi_async_cleanup_hook_handle cleanup;
  size_t pollCount;
};

std::unordered_map<uint64_t, LoopObject*>& loopObjects() {
  thread_local std::unordered_map<uint64_t, LoopObject*> objects;
  return objects;
}

static std::atomic<uint64_t> lastHandle{0};

LoopObject::LoopObject(ObjectKind kind, napi_env env, const Functions& library)
    : kind(kind), env(env), library(library), handle(++lastHandle) {}

void LoopObject::enlist() {
  loopObjects().emplace(handle, this);
  napi_add_async_cleanup_hook(env, closeAtEnvEnd, this, &cleanup_);
}

bool LoopObject::watch(void* socket) {
  int descriptor = -1;
  size_t descriptorBytes = sizeof descriptor;
  uv_loop_t* loop = nullptr;
  if (library.getsockopt_(socket, kOptionFd, &descriptor, &descriptorBytes) != 0) return false;
  auto* watch = new Watch{{}, this, socket, nullptr};
  watch->poll.data = watch;
  if (napi_get_uv_event_loop(env, &loop) != napi_ok || uv_poll_init(loop, &watch->poll, descriptor) != 0) {
    delete watch;
    return false;
  }
  watches_.push_back(watch);
  uv_poll_start(&watch->poll, UV_READABLE, onPoll);
  return true;
}

void LoopObject::onPoll(uv_poll_t* poll, int, int) {
  auto* watch = static_cast<Watch*>(poll->data);
  watch->object->onReadable(watch->socket);
}

void LoopObject::onPollClosed(uv_handle_t* handle) {
  auto* watch = static_cast<Watch*>(handle->data);
  Leaving* leaving = watch->leaving;
  delete watch;
  leaving->pollCount -= 1;
  if (leaving->pollCount > 0) return;
  if (leaving->cleanup != nullptr) napi_remove_async_cleanup_hook(leaving->cleanup);
  delete leaving;
}

void LoopObject::close() {
  loopObjects().erase(handle);
  if (watches_.empty()) {
    if (cleanup_ != nullptr) napi_remove_async_cleanup_hook(cleanup_);
  } else {
    auto* leaving = new Leaving{cleanup_, watches_.size()};
    for (Watch* watch : watches_) {
      watch->leaving = leaving;
      // Off the descriptor before libzmq closes it.
      uv_poll_stop(&watch->poll);
      uv_close(reinterpret_cast<uv_handle_t*>(&watch->poll), onPollClosed);
    }
  }
  closeSockets();
  delete this;
}

void LoopObject::closeAtEnvEnd(napi_async_cleanup_hook_handle, void* data) {
  static_cast<LoopObject*>(data)->close();
}

void Context::closeSockets() {
  if (context == nullptr) return;
  while (library.ctx_term_(context) != 0 && library.errno_() == EINTR) {
  }
}

int Socket::eventsNow() {
  int events = 0;
  size_t bytes = sizeof events;
  return library.getsockopt_(socket, kOptionEvents, &events, &bytes) == 0 ? events : 0;
}

napi_value throwZmq(napi_env env, const Functions& library, const char* what) {
  const int number = library.errno_();
  const char* code = "KVPEER_ZMQ";
  switch (number) {
    case EADDRINUSE:
      code = "EADDRINUSE";
      break;
    case EADDRNOTAVAIL:
      code = "EADDRNOTAVAIL";
      break;
    case ENODEV:
      code = "ENODEV";
      break;
    case EACCES:
      code = "EACCES";
      break;
    case EMFILE:
      code = "EMFILE";
      break;
    default:
      break;
  }
  return throwError(env, std::string(what) + ": " + library.strerror_(number), code);
}

namespace {

// createContext() -> handle
napi_value createContext(napi_env env, napi_callback_info) {
  const Functions* library = functions();
  if (library == nullptr) {
    return throwError(env, "no loaded library offers libzmq's functions; zeromq.js must be loaded before, and built so",
                      "KVPEER_NATIVE_UNAVAILABLE");
  }
  auto* context = new Context(env, *library);
  context->enlist();
  if (context->context == nullptr || library->ctx_set_(context->context, kContextMaxSockets, kMaxSockets) != 0) {
    throwZmq(env, *library, "createContext");
    context->close();
    return nullptr;
  }
  return toNumber(env, static_cast<double>(context->handle));
}

// closeContext(context)
napi_value closeContext(napi_env env, napi_callback_info info) {
  Arguments<1> args(env, info, "closeContext");
  auto* context = ownObject<Context>(args, 0, "context");
  if (args.ok() && context->socketCount > 0) args.fail("it still has sockets");
  if (args.ok()) context->close();
  return nullptr;
}

}  // namespace

void registerContextFunctions(napi_env env, napi_value exports) {
  exportFunction(env, exports, "createContext", createContext);
  exportFunction(env, exports, "closeContext", closeContext);
}

}  // namespace kvpeer::zmq
