// Wakers, see wakers.h: one uv_async handle each, behind a table of the process, so that a thread that wakes never holds
// a pointer to a handle whose event loop may be gone.

#include "core/wakers.h"

#include <uv.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "core/loop_callback.h"
#include "core/napi_args.h"

namespace kvpeer {
namespace {

constexpr uint64_t kMaxHandle = (uint64_t{1} << 53) - 1;

struct Waker {
  Waker(napi_env env, napi_value function)
      : env(env), callback(std::make_unique<LoopCallback>(env, function, "kvpeer:waker")) {}

  uv_async_t async = {};
  const napi_env env;
  // Gone before libuv lets go of the handle: the env may have ended by then.
  std::unique_ptr<LoopCallback> callback;
  napi_async_cleanup_hook_handle cleanup = nullptr;
  uint64_t handle = 0;
};

std::mutex tableMutex;
uint64_t lastHandle = 0;

// By handle; handles are never used again. Never destroyed: workers may wake while the process exits.
std::unordered_map<uint64_t, Waker*>& table() {
  static auto* wakers = new std::unordered_map<uint64_t, Waker*>();
  return *wakers;
}

void onWake(uv_async_t* async) { static_cast<Waker*>(async->data)->callback->call(); }

void onClosed(uv_handle_t* handle) {
  auto* waker = static_cast<Waker*>(handle->data);
  napi_remove_async_cleanup_hook(waker->cleanup);
  delete waker;
}

// After this no thread reaches the handle; the memory goes once libuv has let go of it.
void close(Waker* waker) {
  {
    std::lock_guard<std::mutex> lock(tableMutex);
    table().erase(waker->handle);
  }
  waker->callback.reset();
  uv_close(reinterpret_cast<uv_handle_t*>(&waker->async), onClosed);
}

void closeAtEnvEnd(napi_async_cleanup_hook_handle, void* data) {
  auto* waker = static_cast<Waker*>(data);
  if (uv_is_closing(reinterpret_cast<uv_handle_t*>(&waker->async)) == 0) close(waker);
}

// The waker behind an argument, if this env made it; otherwise an exception is pending.
template <size_t Count>
Waker* ownWaker(napi_env env, Arguments<Count>& args) {
  const uint64_t handle = args.integer(0, "waker", 1, kMaxHandle);
  if (!args.ok()) return nullptr;
  std::lock_guard<std::mutex> lock(tableMutex);
  const auto found = table().find(handle);
  if (found == table().end() || found->second->env != env) {
    args.failRange("this thread has no such waker");
    return nullptr;
  }
  return found->second;
}

napi_value createWaker(napi_env env, napi_callback_info info) {
  Arguments<1> args(env, info, "createWaker");
  napi_valuetype type = napi_undefined;
  if (args.ok()) napi_typeof(env, args.value(0), &type);
  if (args.ok() && type != napi_function) args.failType("callback must be a function");
  if (!args.ok()) return nullptr;

  uv_loop_t* loop = nullptr;
  auto* waker = new Waker(env, args.value(0));
  waker->async.data = waker;
  if (napi_get_uv_event_loop(env, &loop) != napi_ok || uv_async_init(loop, &waker->async, onWake) != 0) {
    delete waker;
    return throwError(env, "createWaker: this thread's event loop takes no more handles");
  }
  napi_add_async_cleanup_hook(env, closeAtEnvEnd, waker, &waker->cleanup);
  std::lock_guard<std::mutex> lock(tableMutex);
  waker->handle = ++lastHandle;
  table()[waker->handle] = waker;
  return toNumber(env, static_cast<double>(waker->handle));
}

napi_value wake(napi_env env, napi_callback_info info) {
  Arguments<1> args(env, info, "wake");
  const uint64_t handle = args.integer(0, "waker", 1, kMaxHandle);
  if (!args.ok()) return nullptr;
  bool isAlive = false;
  {
    // Under the lock: close() takes the handle out of the table before libuv may free it.
    std::lock_guard<std::mutex> lock(tableMutex);
    const auto found = table().find(handle);
    isAlive = found != table().end();
    if (isAlive) uv_async_send(&found->second->async);
  }
  return toBoolean(env, isAlive);
}

napi_value setWakerRef(napi_env env, napi_callback_info info) {
  Arguments<2> args(env, info, "setWakerRef");
  Waker* waker = ownWaker(env, args);
  const bool ref = args.boolean(1, "ref");
  if (!args.ok()) return nullptr;
  auto* handle = reinterpret_cast<uv_handle_t*>(&waker->async);
  if (ref) {
    uv_ref(handle);
  } else {
    uv_unref(handle);
  }
  return nullptr;
}

napi_value closeWaker(napi_env env, napi_callback_info info) {
  Arguments<1> args(env, info, "closeWaker");
  Waker* waker = ownWaker(env, args);
  if (args.ok()) close(waker);
  return nullptr;
}

}  // namespace

void registerWakerFunctions(napi_env env, napi_value exports) {
  exportFunction(env, exports, "createWaker", createWaker);
  exportFunction(env, exports, "wake", wake);
  exportFunction(env, exports, "setWakerRef", setWakerRef);
  exportFunction(env, exports, "closeWaker", closeWaker);
}

}  // namespace kvpeer
