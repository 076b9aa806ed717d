// The Node-API face of the send agents. Every handle and number is checked; a wrong one throws.

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
#include "nixl/bindings.h"
#include "nixl/transfers.h"

namespace kvpeer {

namespace {

constexpr size_t kMaxPairs = 1u << 20;
// Requests of one postMany: the worker's stop word and its other agents wait for no more than 64 MiB.
constexpr int32_t kMaxPosts = 16;

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

// [taken pairs, request id or 0, NIXL status] of the last request, [pairs, requests] that had ended before it
template <size_t Count>
int32_t* readResult(Arguments<Count>& args, size_t index) {
  size_t length = 0;
  auto* result = static_cast<int32_t*>(args.typedArray(index, "result", napi_int32_array, &length));
  if (args.ok() && length < 5) args.fail("result must have at least 5 elements");
  return result;
}

void writeResult(int32_t* result, const SendAgent::PostResult& posted, size_t endedPairs = 0,
                 int32_t endedRequests = 0) {
  result[0] = static_cast<int32_t>(posted.takenCount);
  result[1] = static_cast<int32_t>(posted.requestId);
  result[2] = posted.status;
  result[3] = static_cast<int32_t>(endedPairs);
  result[4] = endedRequests;
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

// The pairs that post and postMany are about.
struct PairRange {
  const BlockPair* pairs = nullptr;
  size_t first = 0;
  size_t count = 0;
};

template <size_t Count>
PairRange readRange(Arguments<Count>& args) {
  PairRange range;
  size_t length = 0;
  range.pairs = static_cast<const BlockPair*>(args.typedArray(2, "pairs", napi_int32_array, &length));
  range.first = args.integer(3, "first", 0, kMaxPairs);
  range.count = args.integer(4, "count", 1, kMaxPairs);
  if (args.ok() && range.first + range.count > length / 2) {
    args.fail("the pairs reach beyond their array");
  }
  return range;
}

// One request from pair range.first + done on. False with an exception pending when a pair is out of bounds.
bool postNext(napi_env env, SendAgent* agent, uint32_t peer, const PairRange& range, size_t done,
              SendAgent::PostResult* posted) {
  // Checked and used in a copy that nobody else can change in between.
  thread_local std::vector<BlockPair> batch;
  const BlockPair* next = range.pairs + range.first + done;
  batch.assign(next, next + std::min(range.count - done, agent->maxRequestBlocks()));
  const int64_t bad = agent->findBadPair(peer, batch.data(), batch.size());
  if (bad >= 0) {
    throwError(env, "nixlPost: pair " + std::to_string(range.first + done + static_cast<size_t>(bad)) +
                        " is outside the pool or the peer's blocks");
    return false;
  }
  *posted = agent->post(peer, batch.data(), batch.size());
  return true;
}

// nixlPost(agent, peer, pairs, first, count, result): one request from pair `first` on, at most `count` pairs
napi_value post(napi_env env, napi_callback_info info) {
  Arguments<6> args(env, info, "nixlPost");
  SendAgent* agent = readAgent(env, args);
  const uint32_t peer = readPeer(args, agent);
  const PairRange range = readRange(args);
  int32_t* result = readResult(args, 5);
  if (!args.ok()) return nullptr;
  SendAgent::PostResult posted;
  if (postNext(env, agent, peer, range, 0, &posted)) writeResult(result, posted);
  return nullptr;
}

// nixlPostMany(agent, peer, pairs, first, count, result, control, watchOffset, watchValue): as nixlPost, again and
// again while the requests end inside the call and the uint32 at watchOffset of the mapping is watchValue.
napi_value postMany(napi_env env, napi_callback_info info) {
  Arguments<9> args(env, info, "nixlPostMany");
  SendAgent* agent = readAgent(env, args);
  const uint32_t peer = readPeer(args, agent);
  const PairRange range = readRange(args);
  int32_t* result = readResult(args, 5);
  const uint64_t control = args.uint32(6, "control");
  const uint64_t watchOffset = args.integer(7, "watchOffset", 0, kMaxSafeInteger);
  const uint32_t watchValue = args.uint32(8, "watchValue");
  if (!args.ok()) return nullptr;
  const Mapping* mapping = findMapping(env, control);
  if (mapping == nullptr) return throwError(env, "nixlPostMany: no such mapping");
  const auto* watched = reinterpret_cast<const uint32_t*>(mapping->at(watchOffset, sizeof(uint32_t)));
  if (watched == nullptr || watchOffset % sizeof(uint32_t) != 0) {
    return throwError(env, "nixlPostMany: the watched word is not in the mapping");
  }
  size_t endedPairs = 0;
  for (int32_t endedRequests = 0;; ++endedRequests) {
    SendAgent::PostResult posted;
    if (!postNext(env, agent, peer, range, endedPairs, &posted)) return nullptr;
    const bool hasEnded = posted.requestId == 0 && posted.status == nixl::kSuccess;
    const size_t afterwards = endedPairs + posted.takenCount;
    if (!hasEnded || afterwards == range.count || endedRequests + 1 == kMaxPosts ||
        __atomic_load_n(watched, __ATOMIC_SEQ_CST) != watchValue) {
      writeResult(result, posted, endedPairs, endedRequests);
      return nullptr;
    }
    endedPairs = afterwards;
  }
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

}  // namespace

void registerSendFunctions(napi_env env, napi_value exports) {
  exportFunction(env, exports, "nixlCreateSendAgent", createSendAgent);
  exportFunction(env, exports, "nixlDestroySendAgent", destroySendAgent);
  exportFunction(env, exports, "nixlAddPeer", addPeer);
  exportFunction(env, exports, "nixlRemovePeer", removePeer);
  exportFunction(env, exports, "nixlPreparePairs", preparePairs);
  exportFunction(env, exports, "nixlPost", post);
  exportFunction(env, exports, "nixlPostMany", postMany);
  exportFunction(env, exports, "nixlWarmUp", warmUp);
  exportFunction(env, exports, "nixlPoll", poll);
  exportFunction(env, exports, "nixlStats", stats);
}

}  // namespace kvpeer
