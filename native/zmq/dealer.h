// The sending half: a DEALER that only sends, on the event loop of the thread that made it.
#pragma once

#include <node_api.h>

namespace kvpeer::zmq {

// Adds createDealer, connectDealer, sendDealer, sendAnswer and closeDealer.
void registerDealerFunctions(napi_env env, napi_value exports);

}  // namespace kvpeer::zmq
