// What a ROUTER and a DEALER have in common: a libzmq socket that the event loop of one thread looks after.
#pragma once

#include <node_api.h>
#include <uv.h>

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "core/loop_callback.h"
#include "core/napi_args.h"
#include "zmq/library.h"

namespace kvpeer::zmq {

enum class ObjectKind : uint8_t { kContext, kReceiver, kDealer };

// Base of the objects behind handles. A handle is a number that the process never uses again, so that one that was kept
// too long names nothing, also when the memory of its object is another's already.
class LoopObject {
 public:
  LoopObject(ObjectKind kind, napi_env env, const Functions& library);
  virtual ~LoopObject() = default;
  LoopObject(const LoopObject&) = delete;
  LoopObject& operator=(const LoopObject&) = delete;

  const ObjectKind kind;
  const napi_env env;
  const Functions& library;
  const uint64_t handle;

  // Enters the table of the thread and asks to be closed with its env. Objects are closed in reverse order then.
  void enlist();
  // Closes and deletes the object.
  void close();

 protected:
  // The libzmq part. What `watch` has begun has ended before.
  virtual void closeSockets() = 0;

  // Calls onReadable() whenever the descriptor of a libzmq socket becomes readable. False when the loop takes no more.
  bool watch(void* socket);
  virtual void onReadable(void*) {}

 private:
  struct Watch;
  struct Leaving;
  static void onPoll(uv_poll_t* poll, int status, int events);
  static void onPollClosed(uv_handle_t* handle);
  static void closeAtEnvEnd(napi_async_cleanup_hook_handle, void* data);

  std::vector<Watch*> watches_;
  napi_async_cleanup_hook_handle cleanup_ = nullptr;
};

// The live objects of this thread by their handles.
std::unordered_map<uint64_t, LoopObject*>& loopObjects();

// The object behind argument `at`; otherwise an exception is pending.
template <typename Kind, size_t Count>
Kind* ownObject(Arguments<Count>& args, size_t at, const char* name) {
  const uint64_t handle = args.integer(at, name, 1, (uint64_t{1} << 53) - 1);
  if (!args.ok()) return nullptr;
  const auto found = loopObjects().find(handle);
  if (found != loopObjects().end() && found->second->kind == Kind::kKind) return static_cast<Kind*>(found->second);
  args.failRange(std::string("this thread has no such ") + name);
  return nullptr;
}

template <size_t Count>
bool checkFunction(napi_env env, Arguments<Count>& args, size_t at) {
  napi_valuetype type = napi_undefined;
  if (args.ok()) napi_typeof(env, args.value(at), &type);
  if (args.ok() && type != napi_function) args.failType("callback must be a function");
  return args.ok();
}

// One for the sockets of a transport: they share its I/O thread.
class Context : public LoopObject {
 public:
  static constexpr ObjectKind kKind = ObjectKind::kContext;
  Context(napi_env env, const Functions& library)
      : LoopObject(kKind, env, library), context(library.ctx_new_()) {}
  void* const context;
  size_t socketCount = 0;

 protected:
  // Waits until the sockets are really closed: their ports are free then.
  void closeSockets() override;
};

// A socket of a context; counted there.
class Socket : public LoopObject {
 public:
  Socket(ObjectKind kind, Context& context, int type)
      : LoopObject(kind, context.env, context.library),
        context_(context),
        socket(library.socket_(context.context, type)) {
    context_.socketCount += 1;
  }
  ~Socket() override { context_.socketCount -= 1; }

 protected:
  Context& context_;

 public:
  void* const socket;
  bool set(int option, int value) { return library.setsockopt_(socket, option, &value, sizeof value) == 0; }
  bool set(int option, const void* value, size_t bytes) {
    return library.setsockopt_(socket, option, value, bytes) == 0;
  }
  int eventsNow();

 protected:
  void closeSockets() override {
    if (socket != nullptr) library.close_(socket);
  }
};

// Throws what libzmq's last call in this thread met, with the system's name for it as the code.
napi_value throwZmq(napi_env env, const Functions& library, const char* what);

// Adds createContext and closeContext.
void registerContextFunctions(napi_env env, napi_value exports);

}  // namespace kvpeer::zmq
