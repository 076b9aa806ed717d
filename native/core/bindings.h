// The Node-API faces of the core: bindings.cc and block_bindings.cc.
#pragma once

#include <node_api.h>

namespace kvpeer {

// Raised together with ADDON_VERSION in native/index.ts.
constexpr int kAddonVersion = 4;

// Index, pins, and facts about the machine.
void registerCoreFunctions(napi_env env, napi_value exports);
// Block bytes.
void registerBlockFunctions(napi_env env, napi_value exports);

}  // namespace kvpeer
