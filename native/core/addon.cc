// The module kvpeer_core: one init for every env that loads it (main thread and each worker).

#include <node_api.h>

#include "core/bindings.h"
#include "core/env_state.h"
#include "core/mapping.h"
#include "core/wakers.h"
#include "nixl/register.h"
#include "zmq/dealer.h"
#include "zmq/loop_socket.h"
#include "zmq/message_bindings.h"
#include "zmq/receiver.h"

namespace kvpeer {
namespace {

// Runs before the env's references are dropped and, in a worker, before its 'exit' event: agents first, since they
// reach into the mappings.
void cleanUp(void* data) {
  auto* state = static_cast<EnvState*>(data);
  destroyAgentsOfEnv(*state);
  dropAllAttachments(state->mappings);
}

void freeState(napi_env, void* data, void*) { delete static_cast<EnvState*>(data); }

napi_value init(napi_env env, napi_value exports) {
  auto* state = new EnvState();
  napi_set_instance_data(env, state, freeState, nullptr);
  napi_add_env_cleanup_hook(env, cleanUp, state);
  registerMappingFunctions(env, exports);
  registerCoreFunctions(env, exports);
  registerBlockFunctions(env, exports);
  registerWakerFunctions(env, exports);
  registerNixl(env, exports);
  zmq::registerContextFunctions(env, exports);
  zmq::registerReceiverFunctions(env, exports);
  zmq::registerDealerFunctions(env, exports);
  zmq::registerMessageFunctions(env, exports);
  return exports;
}

}  // namespace
}  // namespace kvpeer

NAPI_MODULE_INIT() { return kvpeer::init(env, exports); }
