// Peers, requests and polling of one send agent, see transfers.h.
//
// Requests are made from merged descriptors of our own, not from prepared lists of all blocks: a list costs 0.2 to 0.35
// us a block (90 ms for 262,144 blocks of 4 KiB) for every peer and again for every new agent after a hard stop, a
// descriptor of our own about 0.1 us, 3 to 6 us more for a full request whose copy takes 30 to 400 us.

#include "nixl/transfers.h"

#include <algorithm>
#include <cstring>

#include "nixl/library.h"

namespace kvpeer {
namespace {

uint64_t sortKey(const BlockPair& pair) {
  return static_cast<uint64_t>(static_cast<uint32_t>(pair.local)) << 32 | static_cast<uint32_t>(pair.remote);
}

// A transfer list that frees itself.
class DescriptorList {
 public:
  explicit DescriptorList(const nixl::Functions* nixl) : nixl_(nixl) {
    if (nixl_->create_xfer_dlist(nixl::kDram, &handle_) != nixl::kSuccess) handle_ = nullptr;
  }
  ~DescriptorList() {
    if (handle_ != nullptr) nixl_->destroy_xfer_dlist(handle_);
  }
  DescriptorList(const DescriptorList&) = delete;
  DescriptorList& operator=(const DescriptorList&) = delete;

  bool add(uint64_t address, uint64_t bytes) {
    return handle_ != nullptr && nixl_->xfer_dlist_add_desc(handle_, address, bytes, 0) == nixl::kSuccess;
  }
  nixl::Handle handle() const { return handle_; }

 private:
  const nixl::Functions* nixl_;
  nixl::Handle handle_ = nullptr;
};

}  // namespace

SendAgent::SendAgent(std::unique_ptr<Agent> agent) : agent_(std::move(agent)) {}

SendAgent::~SendAgent() {
  for (const Request& request : open_) release(request.handle);
  // The agent goes afterwards, with its member: that is what stops the writes.
}

uint32_t SendAgent::addPeer(const uint8_t* blob, size_t blobBytes, const PeerSpan& span, std::string* reason) {
  const nixl::Functions* nixl = nixl::functions();
  if (blobBytes == 0 || blobBytes > kMaxBlobBytes) {
    *reason = "the agent metadata has " + std::to_string(blobBytes) + " bytes; 1 to " +
              std::to_string(kMaxBlobBytes) + " are accepted";
    return 0;
  }
  const std::string claimed = agentNameIn(blob, blobBytes);
  if (claimed.empty()) {
    *reason = "the agent metadata does not begin or end as NIXL's does";
    return 0;
  }
  for (const auto& [handle, peer] : peers_) {
    if (peer.name == claimed) {
      *reason = "an agent of this name is loaded already";
      return 0;
    }
  }

  char* loaded = nullptr;
  int status = nixl->load_remote_md(agent_->handle(), blob, blobBytes, &loaded);
  if (status != nixl::kSuccess) {
    // NIXL may keep parts of a refused blob under its name. One that it refuses for its memory section leaves the
    // connection behind, which nothing but the agent's end removes: that name stays refused here until then.
    nixl->invalidate_remote_md(agent_->handle(), claimed.c_str());
    *reason = "NIXL refused the agent metadata: " + nixl::statusText(status);
    return 0;
  }
  const std::string name = loaded;
  nixl::freeFromLibrary(loaded);

  const uint64_t bytes = span.numBlocks * agent_->geometry().blockBytes + (span.hasScratch ? kScratchBytes : 0);
  DescriptorList whole(nixl);
  status = whole.add(span.baseAddress, bytes)
               ? nixl->check_remote_md(agent_->handle(), name.c_str(), whole.handle())
               : -1;
  if (status != nixl::kSuccess) {
    nixl->invalidate_remote_md(agent_->handle(), name.c_str());
    *reason = "the agent metadata does not cover the announced blocks: " + nixl::statusText(status);
    return 0;
  }
  const uint32_t handle = ++lastPeer_;
  peers_.emplace(handle, Peer{name, span, 0});
  return handle;
}

bool SendAgent::removePeer(uint32_t handle) {
  auto found = peers_.find(handle);
  if (found->second.openCount > 0) return false;
  nixl::functions()->invalidate_remote_md(agent_->handle(), found->second.name.c_str());
  peers_.erase(found);
  return true;
}

bool SendAgent::isInAddressRange(const PeerSpan& span) const {
  constexpr uint64_t kLimit = 1ull << 53;
  // At most 2^31 blocks of at most 2^32 bytes: no overflow.
  return span.baseAddress + span.numBlocks * agent_->geometry().blockBytes + kScratchBytes < kLimit;
}

size_t SendAgent::maxRequestBlocks() const {
  return std::max<uint64_t>(1, kMaxRequestBytes / agent_->geometry().blockBytes);
}

int64_t SendAgent::findBadPair(uint32_t peer, const BlockPair* pairs, size_t count) const {
  const uint64_t localBlocks = agent_->geometry().numBlocks;
  const uint64_t remoteBlocks = peers_.at(peer).span.numBlocks;
  for (size_t index = 0; index < count; ++index) {
    if (!isInside(pairs[index], localBlocks, remoteBlocks)) return static_cast<int64_t>(index);
  }
  return -1;
}

SendAgent::PostResult SendAgent::post(uint32_t peer, const BlockPair* pairs, size_t count) {
  const nixl::Functions* nixl = nixl::functions();
  const PoolGeometry& pool = agent_->geometry();
  const uint64_t blockBytes = pool.blockBytes;
  const uint64_t localBase = reinterpret_cast<uint64_t>(agent_->poolBase());
  const uint64_t remoteBase = peers_.at(peer).span.baseAddress;
  const size_t maxBlocks = maxRequestBlocks();

  DescriptorList local(nixl);
  DescriptorList remote(nixl);
  size_t taken = 0;
  for (size_t descriptors = 0; taken < count && taken < maxBlocks && descriptors < kMaxDescriptors; ++descriptors) {
    const BlockPair first = pairs[taken];
    size_t run = 1;
    while (taken + run < count && taken + run < maxBlocks) {
      const BlockPair next = pairs[taken + run];
      if (next.local - first.local != static_cast<int64_t>(run) ||
          next.remote - first.remote != static_cast<int64_t>(run)) {
        break;
      }
      ++run;
    }
    if (!local.add(localBase + static_cast<uint64_t>(first.local) * blockBytes, run * blockBytes) ||
        !remote.add(remoteBase + static_cast<uint64_t>(first.remote) * blockBytes, run * blockBytes)) {
      return {static_cast<uint32_t>(taken + run), 0, -1};
    }
    taken += run;
  }
  PostResult result = postList(peer, local.handle(), remote.handle(), taken * blockBytes);
  result.takenCount = static_cast<uint32_t>(taken);
  return result;
}

SendAgent::PostResult SendAgent::warmUp(uint32_t peer) {
  const nixl::Functions* nixl = nixl::functions();
  const PoolGeometry& pool = agent_->geometry();
  const PeerSpan& span = peers_.at(peer).span;
  DescriptorList local(nixl);
  DescriptorList remote(nixl);
  if (!local.add(reinterpret_cast<uint64_t>(agent_->poolBase()) + pool.slotBytes(), kScratchBytes) ||
      !remote.add(span.baseAddress + span.numBlocks * pool.blockBytes, kScratchBytes)) {
    return {0, 0, -1};
  }
  return postList(peer, local.handle(), remote.handle(), kScratchBytes);
}

SendAgent::PostResult SendAgent::postList(uint32_t peerHandle, nixl::Handle local, nixl::Handle remote,
                                          uint64_t bytes) {
  const nixl::Functions* nixl = nixl::functions();
  Peer& peer = peers_.at(peerHandle);
  nixl::Handle request = nullptr;
  int status = nixl->create_xfer_req(agent_->handle(), nixl::kWrite, local, remote, peer.name.c_str(), &request,
                                     nullptr);
  if (status != nixl::kSuccess) {
    counters_.failedRequests += 1;
    return {0, 0, status};
  }
  counters_.postedRequests += 1;
  counters_.postedBytes += bytes;
  status = nixl->post_xfer_req(agent_->handle(), request, nullptr);
  if (status == nixl::kInProgress) {
    // 0 says "ended"; ids are not reused while a request of 4 billion posts ago is still open.
    if (++lastRequest_ == 0) lastRequest_ = 1;
    open_.push_back({lastRequest_, peerHandle, bytes, request});
    peer.openCount += 1;
    return {0, lastRequest_, status};
  }
  // Memory copies, and small writes over TCP, have often ended when post returns.
  if (status == nixl::kSuccess) {
    counters_.completedRequests += 1;
    counters_.completedBytes += bytes;
  } else {
    counters_.failedRequests += 1;
  }
  release(request);
  return {0, 0, status};
}

size_t SendAgent::poll(Ended* ended, size_t capacity) {
  const nixl::Functions* nixl = nixl::functions();
  size_t endedCount = 0;
  size_t kept = 0;
  for (size_t index = 0; index < open_.size(); ++index) {
    const Request request = open_[index];
    const int status =
        endedCount < capacity ? nixl->get_xfer_status(agent_->handle(), request.handle) : int{nixl::kInProgress};
    if (status == nixl::kInProgress) {
      open_[kept++] = request;
      continue;
    }
    if (status == nixl::kSuccess) {
      counters_.completedRequests += 1;
      counters_.completedBytes += request.bytes;
    } else {
      counters_.failedRequests += 1;
    }
    peers_.at(request.peer).openCount -= 1;
    release(request.handle);
    ended[endedCount++] = {request.id, status};
  }
  open_.resize(kept);
  return endedCount;
}

void SendAgent::release(nixl::Handle request) {
  const nixl::Functions* nixl = nixl::functions();
  // The first call frees NIXL's request, the second the C API's wrapper, which refuses before the first.
  nixl->release_xfer_req(agent_->handle(), request);
  nixl->destroy_xfer_req(request);
}

void sortPairs(BlockPair* pairs, size_t count) {
  auto isBefore = [](const BlockPair& a, const BlockPair& b) { return sortKey(a) < sortKey(b); };
  // Slots of one lookup are mostly in order already.
  if (!std::is_sorted(pairs, pairs + count, isBefore)) std::sort(pairs, pairs + count, isBefore);
}

std::string agentNameIn(const uint8_t* blob, size_t bytes) {
  // "nixlSerDes|", then records of tag, 8-byte little-endian length, data and "|"; the first is the agent's name.
  static constexpr char kStart[] = "nixlSerDes|Agent";
  constexpr size_t kStartBytes = sizeof kStart - 1;
  constexpr size_t kMaxNameBytes = 1024;
  if (bytes < kStartBytes + 8 || memcmp(blob, kStart, kStartBytes) != 0 || blob[bytes - 1] != '|') return {};
  uint64_t length = 0;
  memcpy(&length, blob + kStartBytes, sizeof length);
  const size_t available = bytes - kStartBytes - 8;
  if (length == 0 || length > kMaxNameBytes || length >= available) return {};
  const char* name = reinterpret_cast<const char*>(blob + kStartBytes + 8);
  // The library hands names out as C strings: one with a zero byte would be another name afterwards.
  if (name[length] != '|' || memchr(name, 0, length) != nullptr) return {};
  return std::string(name, length);
}

}  // namespace kvpeer
