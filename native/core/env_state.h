// What the addon keeps per env (main thread, each worker): instance data, made by the module's init.
#pragma once

#include <node_api.h>

#include <memory>

#include "core/mapping.h"
#include "core/number_sets.h"

namespace kvpeer {

struct EnvAgents;  // nixl/agents.h

struct EnvState {
  EnvState();
  ~EnvState();

  EnvMappings mappings;
  MatchScratch scratch;
  std::unique_ptr<EnvAgents> agents;
};

inline EnvState* envState(napi_env env) {
  void* data = nullptr;
  napi_get_instance_data(env, &data);
  return static_cast<EnvState*>(data);
}

}  // namespace kvpeer
