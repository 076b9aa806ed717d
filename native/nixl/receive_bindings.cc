// The Node-API face of the library and the receive agents. Every handle and number is checked; a wrong one throws.

#include <node_api.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "core/env_state.h"
#include "core/mapping.h"
#include "core/napi_args.h"
#include "nixl/agents.h"
#include "nixl/bindings.h"
#include "nixl/connections.h"
#include "nixl/library.h"

namespace kvpeer {
namespace {

// nixlLoad(absolutePath)
napi_value load(napi_env env, napi_callback_info info) {
  Arguments<1> args(env, info, "nixlLoad");
  const std::string path = args.string(0, "path", 4096);
  if (!args.ok()) return nullptr;
  const std::string reason = nixl::loadLibrary(path);
  return reason.empty() ? nullptr : throwError(env, reason, kUnavailable);
}

// One receive agent on its way in or out, off the event loop.
struct AgentWork {
  napi_async_work work = nullptr;
  napi_deferred deferred = nullptr;
  bool isCreation = false;
  std::string libraryPath;
  PoolGeometry geometry;
  std::shared_ptr<Mapping> pool;
  MappingHold hold;
  std::unique_ptr<Agent> agent;
  std::string metadata;
  std::string reason;
};

void executeWork(napi_env, void* data) {
  auto* work = static_cast<AgentWork*>(data);
  if (!work->isCreation) {
    work->agent.reset();
    return;
  }
  work->reason = nixl::loadLibrary(work->libraryPath);
  if (!work->reason.empty()) return;
  work->agent = Agent::create(Agent::Role::kReceive, work->pool, work->geometry, &work->reason);
  if (work->agent == nullptr) return;
  work->metadata = work->agent->metadata();
  if (work->metadata.empty()) {
    work->agent.reset();
    work->reason = "NIXL gave no metadata for the new agent";
  }
}

napi_value makeError(napi_env env, const char* code, const std::string& message) {
  napi_value error = nullptr;
  napi_create_error(env, toText(env, code), toText(env, message), &error);
  return error;
}

void completeWork(napi_env env, napi_status, void* data) {
  std::unique_ptr<AgentWork> work(static_cast<AgentWork*>(data));
  napi_delete_async_work(env, work->work);
  if (!work->isCreation) {
    napi_value nothing = nullptr;
    napi_get_undefined(env, &nothing);
    napi_resolve_deferred(env, work->deferred, nothing);
    return;
  }
  EnvAgents& agents = *envState(env)->agents;
  if (work->agent == nullptr || agents.isClosed) {
    napi_reject_deferred(env, work->deferred, makeError(env, kUnavailable, work->reason));
    return;
  }
  const uint32_t handle = nextAgentHandle();
  napi_value result = nullptr;
  napi_value metadata = nullptr;
  napi_create_object(env, &result);
  napi_create_buffer_copy(env, work->metadata.size(), work->metadata.data(), nullptr, &metadata);
  setProperty(env, result, "handle", toNumber(env, handle));
  setProperty(env, result, "name", toText(env, work->agent->name()));
  setProperty(env, result, "metadata", metadata);
  setProperty(env, result, "baseAddr",
              toNumber(env, static_cast<double>(reinterpret_cast<uintptr_t>(work->agent->poolBase()))));
  agents.receive.emplace(handle, std::move(work->agent));
  napi_resolve_deferred(env, work->deferred, result);
}

napi_value queueWork(napi_env env, const char* name, std::unique_ptr<AgentWork> work) {
  napi_value promise = nullptr;
  napi_create_promise(env, &work->deferred, &promise);
  napi_create_async_work(env, nullptr, toText(env, name), executeWork, completeWork, work.get(), &work->work);
  napi_queue_async_work(env, work->work);
  work.release();  // completeWork takes it back
  return promise;
}

// nixlCreateReceiveAgent(libraryPath, pool, numBlocks, blockBytes) -> Promise<{handle, name, metadata, baseAddr}>
napi_value createReceiveAgent(napi_env env, napi_callback_info info) {
  Arguments<4> args(env, info, "nixlCreateReceiveAgent");
  auto work = std::make_unique<AgentWork>();
  work->isCreation = true;
  work->libraryPath = args.string(0, "libraryPath", 4096);
  work->pool = readPool(env, args, 1, &work->geometry);
  if (!args.ok()) return nullptr;
  work->hold = MappingHold(work->pool);
  return queueWork(env, "nixlCreateReceiveAgent", std::move(work));
}

// nixlDestroyReceiveAgent(handle) -> Promise<void>; nothing lands in the pool through it afterwards.
napi_value destroyReceiveAgent(napi_env env, napi_callback_info info) {
  Arguments<1> args(env, info, "nixlDestroyReceiveAgent");
  const uint32_t handle = args.uint32(0, "handle");
  if (!args.ok()) return nullptr;
  auto& agents = envState(env)->agents->receive;
  const auto found = agents.find(handle);
  if (found == agents.end()) return throwError(env, "nixlDestroyReceiveAgent: no such receive agent in this thread");
  auto work = std::make_unique<AgentWork>();
  work->agent = std::move(found->second);
  agents.erase(found);
  return queueWork(env, "nixlDestroyReceiveAgent", std::move(work));
}

// nixlWaitingArrivals(handle) -> Float64Array of [descriptor, inode, received bytes] for each connection
napi_value waitingArrivalsOf(napi_env env, napi_callback_info info) {
  Arguments<1> args(env, info, "nixlWaitingArrivals");
  const uint32_t handle = args.uint32(0, "handle");
  if (!args.ok()) return nullptr;
  const auto& agents = envState(env)->agents->receive;
  const auto found = agents.find(handle);
  if (found == agents.end()) return throwError(env, "nixlWaitingArrivals: no such receive agent in this thread");
  const std::vector<Arrival> arrivals = waitingArrivals(found->second->metadata());
  void* data = nullptr;
  napi_value buffer = nullptr;
  napi_value result = nullptr;
  napi_create_arraybuffer(env, arrivals.size() * 3 * sizeof(double), &data, &buffer);
  auto* numbers = static_cast<double*>(data);
  for (const Arrival& arrival : arrivals) {
    *numbers++ = arrival.fd;
    *numbers++ = static_cast<double>(arrival.inode);
    *numbers++ = static_cast<double>(arrival.receivedBytes);
  }
  napi_create_typedarray(env, napi_float64_array, arrivals.size() * 3, buffer, 0, &result);
  return result;
}

// nixlHaveBeenRead(arrivals)
napi_value haveBeenRead(napi_env env, napi_callback_info info) {
  Arguments<1> args(env, info, "nixlHaveBeenRead");
  size_t length = 0;
  auto* numbers = static_cast<const double*>(args.typedArray(0, "arrivals", napi_float64_array, &length));
  if (!args.ok()) return nullptr;
  bool isOver = true;
  for (size_t index = 0; index + 2 < length; index += 3) {
    for (size_t i = index; i < index + 3; ++i) {
      if (!(numbers[i] >= 0 && numbers[i] < static_cast<double>(kMaxSafeInteger))) {
        return throwError(env, "nixlHaveBeenRead: not the arrivals of nixlWaitingArrivals");
      }
    }
    const Arrival arrival{static_cast<int>(std::min(numbers[index], static_cast<double>(INT32_MAX))),
                          static_cast<uint64_t>(numbers[index + 1]), static_cast<uint64_t>(numbers[index + 2])};
    isOver = isOver && hasBeenRead(arrival);
  }
  napi_value result = nullptr;
  napi_get_boolean(env, isOver, &result);
  return result;
}

// nixlStatusText(status)
napi_value statusText(napi_env env, napi_callback_info info) {
  Arguments<1> args(env, info, "nixlStatusText");
  int32_t status = 0;
  if (args.ok() && napi_get_value_int32(env, args.value(0), &status) != napi_ok) args.fail("status must be a number");
  return args.ok() ? toText(env, nixl::statusText(status)) : nullptr;
}

}  // namespace

void registerReceiveFunctions(napi_env env, napi_value exports) {
  exportFunction(env, exports, "nixlLoad", load);
  exportFunction(env, exports, "nixlCreateReceiveAgent", createReceiveAgent);
  exportFunction(env, exports, "nixlDestroyReceiveAgent", destroyReceiveAgent);
  exportFunction(env, exports, "nixlWaitingArrivals", waitingArrivalsOf);
  exportFunction(env, exports, "nixlHaveBeenRead", haveBeenRead);
  exportFunction(env, exports, "nixlStatusText", statusText);
}

}  // namespace kvpeer
