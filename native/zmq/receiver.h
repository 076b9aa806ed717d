// The receiving half: a ROUTER that only receives, on the event loop of the thread that made it.
#pragma once

#include <node_api.h>

namespace kvpeer::zmq {

// Adds createReceiver, bindReceiver, receive, receivedFrom and closeReceiver.
void registerReceiverFunctions(napi_env env, napi_value exports);

}  // namespace kvpeer::zmq
