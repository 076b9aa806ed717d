// The Node-API face of the index, the pins and the block bytes.
#pragma once

#include <node_api.h>

namespace kvpeer {

// Raised together with ADDON_VERSION in native/index.ts.
constexpr int kAddonVersion = 1;

void registerCoreFunctions(napi_env env, napi_value exports);

}  // namespace kvpeer
