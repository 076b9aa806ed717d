// The Node-API face of the NIXL part. Every handle and number is checked; a wrong one throws.

#include <node_api.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/env_state.h"
#include "core/mapping.h"
#include "core/napi_args.h"
#include "nixl/agents.h"
#include "nixl/connections.h"
#include "nixl/library.h"
#include "nixl/register.h"
#include "nixl/transfers.h"

namespace kvpeer {

EnvState::EnvState() : agents(std::make_unique<EnvAgents>()) {}
EnvState::~EnvState() = default;

void destroyAgentsOfEnv(EnvState& state) {
  state.agents->isClosed = true;
  state.agents->send.clear();
  state.agents->receive.clear();
}

namespace {

constexpr uint64_t kMaxSafeInteger = (1ull << 53) - 1;
constexpr uint64_t kMaxBlocks = (1ull << 31) - 1;
constexpr size_t kMaxPairs = 1u << 20;
constexpr const char* kUnavailable = "KVPEER_NIXL_UNAVAILABLE";

// Arguments `first` .. `first` + 2: pool handle, numBlocks, blockBytes.
template <size_t Count>
std::shared_ptr<Mapping> readPool(napi_env env, Arguments<Count>& args, size_t first, PoolGeometry* geometry) {
  const uint64_t handle = args.uint32(first, "pool");
  geometry->numBlocks = args.integer(first + 1, "numBlocks", 1, kMaxBlocks);
  geometry->blockBytes = args.integer(first + 2, "blockBytes", 1, 1ull << 32);
  if (!args.ok()) return nullptr;
  std::shared_ptr<Mapping> pool = shareMapping(env, handle);
  if (pool == nullptr) {
    args.fail("no such mapping");
  } else if (geometry->spanBytes() > pool->bytes) {
    args.fail("the pool has " + std::to_string(pool->bytes) + " bytes, the blocks and the scratch page need " +
              std::to_string(geometry->spanBytes()));
  }
  return pool;
}

template <size_t Count>
SendAgent* readAgent(napi_env env, Arguments<Count>& args) {
  const uint32_t handle = args.uint32(0, "agent");
  if (!args.ok()) return nullptr;
  auto& agents = envState(env)->agents->send;
  const auto found = agents.find(handle);
  if (found == agents.end()) {
    args.fail("no such send agent in this thread");
    return nullptr;
  }
  return found->second.get();
}

template <size_t Count>
uint32_t readPeer(Arguments<Count>& args, const SendAgent* agent) {
  const uint32_t peer = args.uint32(1, "peer");
  if (args.ok() && !agent->hasPeer(peer)) args.fail("no such peer on this agent");
  return peer;
}

// [taken pairs, request id or 0, NIXL status]
template <size_t Count>
int32_t* readResult(Arguments<Count>& args, size_t index) {
  size_t length = 0;
  auto* result = static_cast<int32_t*>(args.typedArray(index, "result", napi_int32_array, &length));
  if (args.ok() && length < 3) args.fail("result must have at least 3 elements");
  return result;
}

void writeResult(int32_t* result, const SendAgent::PostResult& posted) {
  result[0] = static_cast<int32_t>(posted.takenCount);
  result[1] = static_cast<int32_t>(posted.requestId);
  result[2] = posted.status;
}

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

// nixlCreateSendAgent(pool, numBlocks, blockBytes) -> handle; about 30 ms, on the calling thread.
napi_value createSendAgent(napi_env env, napi_callback_info info) {
  Arguments<3> args(env, info, "nixlCreateSendAgent");
  PoolGeometry geometry;
  std::shared_ptr<Mapping> pool = readPool(env, args, 0, &geometry);
  if (!args.ok()) return nullptr;
  std::string reason;
  std::unique_ptr<Agent> agent = Agent::create(Agent::Role::kSend, std::move(pool), geometry, &reason);
  if (agent == nullptr) return throwError(env, reason, kUnavailable);
  const uint32_t handle = nextAgentHandle();
  envState(env)->agents->send.emplace(handle, std::make_unique<SendAgent>(std::move(agent)));
  return toNumber(env, handle);
}

// nixlDestroySendAgent(agent); about 5 ms. Cuts what is in flight.
napi_value destroySendAgent(napi_env env, napi_callback_info info) {
  Arguments<1> args(env, info, "nixlDestroySendAgent");
  if (readAgent(env, args) == nullptr) return nullptr;
  envState(env)->agents->send.erase(args.uint32(0, "agent"));
  return nullptr;
}

// nixlAddPeer(agent, blob, baseAddress, numBlocks, hasScratch) -> peer handle
napi_value addPeer(napi_env env, napi_callback_info info) {
  Arguments<5> args(env, info, "nixlAddPeer");
  SendAgent* agent = readAgent(env, args);
  size_t blobBytes = 0;
  auto* blob = static_cast<uint8_t*>(args.typedArray(1, "blob", napi_uint8_array, &blobBytes));
  SendAgent::PeerSpan span;
  span.baseAddress = args.integer(2, "baseAddress", 0, kMaxSafeInteger);
  span.numBlocks = args.integer(3, "numBlocks", 1, kMaxBlocks);
  span.hasScratch = args.boolean(4, "hasScratch");
  if (!args.ok()) return nullptr;
  if (!agent->isInAddressRange(span)) {
    return throwError(env, "nixlAddPeer: the blocks reach beyond 2^53", "KVPEER_PEER_REJECTED");
  }
  std::string reason;
  const uint32_t peer = agent->addPeer(blob, blobBytes, span, &reason);
  return peer == 0 ? throwError(env, reason, "KVPEER_PEER_REJECTED") : toNumber(env, peer);
}

// nixlRemovePeer(agent, peer) -> false while requests to it are open
napi_value removePeer(napi_env env, napi_callback_info info) {
  Arguments<2> args(env, info, "nixlRemovePeer");
  SendAgent* agent = readAgent(env, args);
  const uint32_t peer = readPeer(args, agent);
  if (!args.ok()) return nullptr;
  napi_value isRemoved = nullptr;
  napi_get_boolean(env, agent->removePeer(peer), &isRemoved);
  return isRemoved;
}

// nixlPreparePairs(control, slotsOffset, indexesOffset, statusesOffset, count, statusA, statusB, localBlocks,
//   remoteBlocks, pairs) -> pair count, or -1 when a slot or an index is out of range.
// Collects (slot, index) of the positions whose status byte is one of the two into `pairs` (Int32Array of 2 * count),
// sorted so that neighbours merge. The lists in the mapping stay as they are: their order is that of the keys.
napi_value preparePairs(napi_env env, napi_callback_info info) {
  Arguments<10> args(env, info, "nixlPreparePairs");
  const uint64_t control = args.uint32(0, "control");
  const uint64_t slotsOffset = args.integer(1, "slotsOffset", 0, kMaxSafeInteger);
  const uint64_t indexesOffset = args.integer(2, "indexesOffset", 0, kMaxSafeInteger);
  const uint64_t statusesOffset = args.integer(3, "statusesOffset", 0, kMaxSafeInteger);
  const size_t count = args.integer(4, "count", 0, kMaxPairs);
  const auto statusA = static_cast<uint8_t>(args.integer(5, "statusA", 0, UINT8_MAX));
  const auto statusB = static_cast<uint8_t>(args.integer(6, "statusB", 0, UINT8_MAX));
  const uint64_t localBlocks = args.integer(7, "localBlocks", 1, kMaxBlocks);
  const uint64_t remoteBlocks = args.integer(8, "remoteBlocks", 1, kMaxBlocks);
  size_t length = 0;
  auto* pairs = static_cast<BlockPair*>(args.typedArray(9, "pairs", napi_int32_array, &length));
  if (!args.ok()) return nullptr;
  const Mapping* mapping = findMapping(env, control);
  if (mapping == nullptr) return throwError(env, "nixlPreparePairs: no such mapping");
  const uint8_t* slots = mapping->at(slotsOffset, count * sizeof(int32_t));
  const uint8_t* indexes = mapping->at(indexesOffset, count * sizeof(int32_t));
  const uint8_t* statuses = mapping->at(statusesOffset, count);
  if (slots == nullptr || indexes == nullptr || statuses == nullptr) {
    return throwError(env, "nixlPreparePairs: a list reaches beyond the mapping");
  }
  if (length < 2 * count) return throwError(env, "nixlPreparePairs: pairs is too short");
  size_t pairCount = 0;
  for (size_t index = 0; index < count; ++index) {
    if (statuses[index] != statusA && statuses[index] != statusB) continue;
    BlockPair pair;
    memcpy(&pair.local, slots + index * sizeof(int32_t), sizeof pair.local);
    memcpy(&pair.remote, indexes + index * sizeof(int32_t), sizeof pair.remote);
    if (!isInside(pair, localBlocks, remoteBlocks)) return toNumber(env, -1);
    pairs[pairCount++] = pair;
  }
  sortPairs(pairs, pairCount);
  return toNumber(env, static_cast<double>(pairCount));
}

// nixlPost(agent, peer, pairs, first, count, result): one request from pair `first` on, at most `count` pairs
napi_value post(napi_env env, napi_callback_info info) {
  Arguments<6> args(env, info, "nixlPost");
  SendAgent* agent = readAgent(env, args);
  const uint32_t peer = readPeer(args, agent);
  size_t length = 0;
  auto* pairs = static_cast<const BlockPair*>(args.typedArray(2, "pairs", napi_int32_array, &length));
  const size_t first = args.integer(3, "first", 0, kMaxPairs);
  const size_t count = args.integer(4, "count", 1, kMaxPairs);
  int32_t* result = readResult(args, 5);
  if (!args.ok()) return nullptr;
  if (first + count > length / 2) return throwError(env, "nixlPost: the pairs reach beyond their array");
  // Checked and used in a copy that nobody else can change in between.
  thread_local std::vector<BlockPair> batch;
  batch.assign(pairs + first, pairs + first + std::min(count, agent->maxRequestBlocks()));
  const int64_t bad = agent->findBadPair(peer, batch.data(), batch.size());
  if (bad >= 0) {
    return throwError(env, "nixlPost: pair " + std::to_string(first + static_cast<size_t>(bad)) +
                               " is outside the pool or the peer's blocks");
  }
  writeResult(result, agent->post(peer, batch.data(), batch.size()));
  return nullptr;
}

// nixlWarmUp(agent, peer, result): takes no pair
napi_value warmUp(napi_env env, napi_callback_info info) {
  Arguments<3> args(env, info, "nixlWarmUp");
  SendAgent* agent = readAgent(env, args);
  const uint32_t peer = readPeer(args, agent);
  int32_t* result = readResult(args, 2);
  if (args.ok() && !agent->hasScratch(peer)) args.fail("the peer has no scratch page");
  if (!args.ok()) return nullptr;
  writeResult(result, agent->warmUp(peer));
  return nullptr;
}

// nixlPoll(agent, ended) -> count; ended = [request id, status] each, as many as fit
napi_value poll(napi_env env, napi_callback_info info) {
  Arguments<2> args(env, info, "nixlPoll");
  SendAgent* agent = readAgent(env, args);
  size_t length = 0;
  auto* ended = static_cast<SendAgent::Ended*>(args.typedArray(1, "ended", napi_int32_array, &length));
  if (!args.ok()) return nullptr;
  return toNumber(env, static_cast<double>(agent->poll(ended, length / 2)));
}

// nixlStats(agent)
napi_value stats(napi_env env, napi_callback_info info) {
  Arguments<1> args(env, info, "nixlStats");
  const SendAgent* agent = readAgent(env, args);
  if (!args.ok()) return nullptr;
  const TransferCounters& counters = agent->counters();
  napi_value result = nullptr;
  napi_create_object(env, &result);
  auto set = [&](const char* name, uint64_t value) {
    setProperty(env, result, name, toNumber(env, static_cast<double>(value)));
  };
  set("peerCount", agent->peerCount());
  set("openRequestCount", agent->openRequestCount());
  set("postedRequestCount", counters.postedRequests);
  set("postedBytes", counters.postedBytes);
  set("completedRequestCount", counters.completedRequests);
  set("completedBytes", counters.completedBytes);
  set("failedRequestCount", counters.failedRequests);
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

void registerNixl(napi_env env, napi_value exports) {
  exportFunction(env, exports, "nixlLoad", load);
  exportFunction(env, exports, "nixlCreateReceiveAgent", createReceiveAgent);
  exportFunction(env, exports, "nixlDestroyReceiveAgent", destroyReceiveAgent);
  exportFunction(env, exports, "nixlWaitingArrivals", waitingArrivalsOf);
  exportFunction(env, exports, "nixlHaveBeenRead", haveBeenRead);
  exportFunction(env, exports, "nixlCreateSendAgent", createSendAgent);
  exportFunction(env, exports, "nixlDestroySendAgent", destroySendAgent);
  exportFunction(env, exports, "nixlAddPeer", addPeer);
  exportFunction(env, exports, "nixlRemovePeer", removePeer);
  exportFunction(env, exports, "nixlPreparePairs", preparePairs);
  exportFunction(env, exports, "nixlPost", post);
  exportFunction(env, exports, "nixlWarmUp", warmUp);
  exportFunction(env, exports, "nixlPoll", poll);
  exportFunction(env, exports, "nixlStats", stats);
  exportFunction(env, exports, "nixlStatusText", statusText);
}

}  // namespace kvpeer
