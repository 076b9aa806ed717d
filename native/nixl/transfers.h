// A send agent's peers and requests: load a peer, write blocks to it, poll, release. One thread only.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "nixl/agents.h"

namespace kvpeer {

// Metadata comes from the network: a blob is a few hundred bytes, 64 KiB leaves room for a host with many devices.
constexpr size_t kMaxBlobBytes = 64 * 1024;
// Small requests are faster than large ones, and the worker looks at its ring between two of them.
constexpr size_t kMaxDescriptors = 64;
constexpr uint64_t kMaxRequestBytes = 4ull << 20;

// One block to write: its slot here, its slot at the peer.
struct BlockPair {
  int32_t local;
  int32_t remote;
};

inline bool isInside(BlockPair pair, uint64_t localBlocks, uint64_t remoteBlocks) {
  return pair.local >= 0 && static_cast<uint64_t>(pair.local) < localBlocks && pair.remote >= 0 &&
         static_cast<uint64_t>(pair.remote) < remoteBlocks;
}

struct TransferCounters {
  uint64_t postedRequests = 0;
  uint64_t postedBytes = 0;
  uint64_t completedRequests = 0;
  uint64_t completedBytes = 0;
  uint64_t failedRequests = 0;
};

class SendAgent {
 public:
  explicit SendAgent(std::unique_ptr<Agent> agent);
  ~SendAgent();
  SendAgent(const SendAgent&) = delete;
  SendAgent& operator=(const SendAgent&) = delete;

  struct PeerSpan {
    uint64_t baseAddress = 0;
    uint64_t numBlocks = 0;
    bool hasScratch = false;
  };

  // What became of a request.
  struct PostResult {
    uint32_t takenCount = 0;  // pairs that this request writes, from the first one on
    uint32_t requestId = 0;   // 0: it has ended already
    int status = 0;           // NIXL's: 0 done, 1 in progress, negative failed
  };

  // The peer's handle, or 0 with `reason` set. Refused metadata is invalidated again.
  uint32_t addPeer(const uint8_t* blob, size_t blobBytes, const PeerSpan& span, std::string* reason);
  // False while the peer has open requests.
  bool removePeer(uint32_t peer);
  bool hasPeer(uint32_t peer) const { return peers_.count(peer) != 0; }
  bool hasScratch(uint32_t peer) const { return peers_.at(peer).span.hasScratch; }

  // Every address of the span is an exact JavaScript number.
  bool isInAddressRange(const PeerSpan& span) const;
  // The most pairs that one request takes.
  size_t maxRequestBlocks() const;
  // Position of the first pair whose slot is outside the pool or the peer's blocks, or -1.
  int64_t findBadPair(uint32_t peer, const BlockPair* pairs, size_t count) const;
  // Writes the first pairs as one request. The pairs must have passed findBadPair() and must not change meanwhile.
  PostResult post(uint32_t peer, const BlockPair* pairs, size_t count);
  // Writes the scratch page to the peer's scratch page: sets the connection up.
  PostResult warmUp(uint32_t peer);

  struct Ended {
    uint32_t requestId;
    int status;
  };
  // Looks once at every open request, releases those that have ended and tells at most `capacity` of them.
  size_t poll(Ended* ended, size_t capacity);

  size_t openRequestCount() const { return open_.size(); }
  size_t peerCount() const { return peers_.size(); }
  const TransferCounters& counters() const { return counters_; }

 private:
  struct Peer {
    std::string name;
    PeerSpan span;
    uint32_t openCount = 0;
  };
  struct Request {
    uint32_t id;
    uint32_t peer;
    uint64_t bytes;
    nixl::Handle handle;
  };

  PostResult postList(uint32_t peer, nixl::Handle local, nixl::Handle remote, uint64_t bytes);
  void release(nixl::Handle request);

  std::unique_ptr<Agent> agent_;
  std::unordered_map<uint32_t, Peer> peers_;
  std::vector<Request> open_;
  uint32_t lastPeer_ = 0;
  uint32_t lastRequest_ = 0;
  TransferCounters counters_;
};

// Orders pairs by local slot (then remote), so that neighbours on both sides become one descriptor.
void sortPairs(BlockPair* pairs, size_t count);

// The agent's name inside a metadata blob; empty when the blob does not begin and end as NIXL writes it (a truncated
// one must not reach the library, see addPeer).
std::string agentNameIn(const uint8_t* blob, size_t bytes);

}  // namespace kvpeer
