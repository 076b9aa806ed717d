// Waking an event loop from any thread of the process.
#pragma once

#include <node_api.h>

namespace kvpeer {

// Adds createWaker, wake, setWakerRef and closeWaker.
void registerWakerFunctions(napi_env env, napi_value exports);

}  // namespace kvpeer
