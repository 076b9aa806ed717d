// What the module's init needs of the NIXL part.
#pragma once

#include <node_api.h>

namespace kvpeer {

struct EnvState;

// Adds the nixl* functions to the addon's exports.
void registerNixl(napi_env env, napi_value exports);

// Destroys every agent that belongs to this env, writes in flight included. Nothing written to a source afterwards
// lands at a peer.
void destroyAgentsOfEnv(EnvState& state);

}  // namespace kvpeer
