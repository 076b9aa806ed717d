// See loop_callback.h.

#include "core/loop_callback.h"

#include "core/napi_args.h"

namespace kvpeer {

LoopCallback::LoopCallback(napi_env env, napi_value function, const char* name) : env_(env) {
  napi_create_reference(env, function, 1, &function_);
  napi_async_init(env, nullptr, toText(env, name), &context_);
}

LoopCallback::~LoopCallback() {
  napi_delete_reference(env_, function_);
  napi_async_destroy(env_, context_);
}

void LoopCallback::call(double argument) {
  napi_env env = env_;
  napi_handle_scope scope = nullptr;
  if (napi_open_handle_scope(env, &scope) != napi_ok) return;
  napi_value function = nullptr;
  napi_value receiver = nullptr;
  napi_value value = toNumber(env, argument);
  napi_get_reference_value(env, function_, &function);
  napi_get_global(env, &receiver);
  if (function != nullptr &&
      napi_make_callback(env, context_, receiver, function, 1, &value, nullptr) == napi_pending_exception) {
    napi_value error = nullptr;
    napi_get_and_clear_last_exception(env, &error);
    napi_fatal_exception(env, error);
  }
  napi_close_handle_scope(env, scope);
}

}  // namespace kvpeer
