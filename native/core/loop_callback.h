// How an event of libuv becomes a call of JavaScript.
#pragma once

#include <node_api.h>

namespace kvpeer {

// A JavaScript function that the loop calls.
class LoopCallback {
 public:
  LoopCallback(napi_env env, napi_value function, const char* name);
  ~LoopCallback();
  LoopCallback(const LoopCallback&) = delete;
  LoopCallback& operator=(const LoopCallback&) = delete;
  // The owner may be closed inside the call. Microtasks and next ticks run afterwards, as after every event.
  void call(double argument = 0);

 private:
  napi_env env_;
  napi_ref function_ = nullptr;
  napi_async_context context_ = nullptr;
};

}  // namespace kvpeer
