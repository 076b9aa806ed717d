// Wakers, see wakers.h: one uv_async handle each, behind a table of the process, so that a thread that wakes never holds
// a pointer to a handle whose event loop may be gone.

#include "core/wakers.h"

#include <uv.h>

#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "core/napi_args.h"

namespace kvpeer {
namespace {

constexpr uint64_t kMaxHandle = (uint64_t{1} << 53) - 1;

struct Waker {
  uv_async_t async = {};
  napi_env env = nullptr;
  napi_ref callback = nullptr;
  napi_async_context context = nullptr;
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

void onWake(uv_async_t* async) {
  auto* waker = static_cast<Waker*>(async->data);
  napi_env env = waker->env;
  napi_handle_scope scope = nullptr;
  if (napi_open_handle_scope(env, &scope) != napi_ok) return;
  napi_value callback = nullptr;
  napi_value receiver = nullptr;
  napi_get_reference_value(env, waker->callback, &callback);
  napi_get_global(env, &receiver);
  // Through make_callback: microtasks and next ticks run after the callback, as after every event.
  if (callback != nullptr &&
      napi_make_callback(env, waker->context, receiver, callback, 0, nullptr, nullptr) == napi_pending_exception) {
    napi_value error = nullptr;
    napi_get_and_clear_last_exception(env, &error);
    napi_fatal_exception(env, error);
  }
  napi_close_handle_scope(env, scope);
}

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
  napi_delete_reference(waker->env, waker->callback);
  napi_async_destroy(waker->env, waker->context);
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
  auto* waker = new Waker();
  waker->env = env;
  waker->async.data = waker;
  napi_value name = toText(env, "kvpeer:waker");
  if (napi_get_uv_event_loop(env, &loop) != napi_ok || uv_async_init(loop, &waker->async, onWake) != 0) {
    delete waker;
    return throwError(env, "createWaker: this thread's event loop takes no more handles");
  }
  napi_create_reference(env, args.value(0), 1, &waker->callback);
  napi_async_init(env, nullptr, name, &waker->context);
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
