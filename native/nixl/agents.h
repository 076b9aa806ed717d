// NIXL agents: the receive agent, whose metadata peers load, and the send agents, which write and are never published.
//
//     receive agent   owned by the process (its env is the main thread's), progress thread on: the kernel's bytes reach
//                     the pool without our doing
//     send agent      owned by one worker's env, no progress thread: its owner posts and polls, nothing else moves it
//
// Both register the pool with its scratch page and hold the pool's mapping.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/mapping.h"
#include "nixl/capi.h"

namespace kvpeer {

// The registered span: numBlocks slots, then one page that peers may write to without meaning.
constexpr uint64_t kScratchBytes = 4096;

struct PoolGeometry {
  uint64_t numBlocks = 0;
  uint64_t blockBytes = 0;
  uint64_t slotBytes() const { return numBlocks * blockBytes; }
  uint64_t spanBytes() const { return slotBytes() + kScratchBytes; }
};

// An agent with the UCX backend and the pool registered. Destroying it ends every write it has in flight: no byte
// written to a source afterwards is sent (only destroying an agent does that).
class Agent {
 public:
  enum class Role { kReceive, kSend };

  // Null with `reason` set when NIXL refuses.
  static std::unique_ptr<Agent> create(Role role, std::shared_ptr<Mapping> pool, PoolGeometry geometry,
                                       std::string* reason);
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  nixl::Handle handle() const { return handle_; }
  const std::string& name() const { return name_; }
  const PoolGeometry& geometry() const { return geometry_; }
  const uint8_t* poolBase() const { return pool_->base; }

  // What a peer loads to write here. Empty when NIXL refuses.
  std::string metadata() const;

 private:
  Agent() = default;

  nixl::Handle handle_ = nullptr;
  nixl::Handle registration_ = nullptr;
  std::string name_;
  PoolGeometry geometry_;
  MappingHold pool_;
};

class SendAgent;  // nixl/transfers.h

// The agents that belong to one env. Handles are unique in the process, so a handle of another thread finds nothing.
struct EnvAgents {
  EnvAgents();
  ~EnvAgents();

  // Set at the env's end: what an async work item still makes is dropped.
  bool isClosed = false;
  std::unordered_map<uint32_t, std::unique_ptr<Agent>> receive;
  std::unordered_map<uint32_t, std::unique_ptr<SendAgent>> send;
};

// 1, 2, 3 ... over all envs.
uint32_t nextAgentHandle();

}  // namespace kvpeer
