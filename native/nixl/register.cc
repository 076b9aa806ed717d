// The NIXL part's place in the module: its functions and what it keeps per env.

#include "nixl/register.h"

#include "core/env_state.h"
#include "nixl/agents.h"
#include "nixl/bindings.h"
#include "nixl/transfers.h"

namespace kvpeer {

EnvState::EnvState() : agents(std::make_unique<EnvAgents>()) {}
EnvState::~EnvState() = default;

void registerNixl(napi_env env, napi_value exports) {
  registerReceiveFunctions(env, exports);
  registerSendFunctions(env, exports);
}

void destroyAgentsOfEnv(EnvState& state) {
  state.agents->isClosed = true;
  state.agents->send.clear();
  state.agents->receive.clear();
}

}  // namespace kvpeer
