// How does a consumer learn that its blocks are there? Two processes, NIXL and sockets, nothing of kvpeer; see
// bench/ext-data-completion.ts. Each thread and each hop stands for one of a kvpeer.
//
//   answer         mover -> main -> I/O thread ==TCP==> I/O thread -> main             as transfer_done goes
//   notification   mover: NIXL notification with the last write ==> progress thread <- looked for by a thread -> main
//                  (the answer follows, as it would have to)
//   direct         mover ==TCP==> main                                                 what fewer hops would give
//   ahead          as notification, but sent by itself right behind the last post, waiting for nothing: does it overtake?
//
// data_completion LIBRARY ROUNDS PER_ROUND -> JSON: for each number of blocks and way the p50 of each round, us, from the
// order to the main thread that knows; and fetches in which a block was incomplete then.

#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "nixl/capi.h"

namespace {

using kvpeer::nixl::AgentConfig;
using kvpeer::nixl::Handle;

// What kvpeer itself has no use for.
#define NOTIFICATION_FUNCTIONS(X)                                                             \
  X(create_opt_args, int, (Handle * args))                                                    \
  X(destroy_opt_args, int, (Handle args))                                                     \
  X(opt_args_set_notif_msg, int, (Handle args, const void* text, size_t bytes))               \
  X(opt_args_set_has_notif, int, (Handle args, bool has))                                     \
  X(gen_notif, int, (Handle agent, const char* name, const void* text, size_t bytes, Handle)) \
  X(create_notif_map, int, (Handle * map))                                                    \
  X(notif_map_clear, int, (Handle map))                                                       \
  X(notif_map_size, int, (Handle map, size_t* agents))                                        \
  X(notif_map_get_agent_at, int, (Handle map, size_t index, const char** name))               \
  X(notif_map_get_notif, int, (Handle map, const char* name, size_t index, const void** text, size_t* bytes)) \
  X(get_notifs, int, (Handle agent, Handle map, Handle))

struct Library {
#define DECLARE(name, result, parameters) result(*name) parameters = nullptr;
  KVPEER_NIXL_FUNCTIONS(DECLARE)
  NOTIFICATION_FUNCTIONS(DECLARE)
#undef DECLARE
} nixl;

enum Way { kAnswer, kNotification, kDirect, kAhead, kWays };
constexpr const char* kWayNames[] = {"answer", "notification", "direct", "ahead"};
constexpr size_t kBlockBytes = 64 * 1024;
constexpr size_t kCounts[] = {1, 16, 128, 512};
constexpr size_t kMostBlocks = 512;
constexpr size_t kMapBytes = kMostBlocks * kBlockBytes;
// As the mover has it.
constexpr size_t kRequestBlocks = 64;
constexpr size_t kOpenRequests = 4;

struct Order {
  uint64_t number;
  uint32_t blocks;
  uint32_t way;
};

[[noreturn]] void fail(const char* what) {
  fprintf(stderr, "data_completion: %s failed\n", what);
  _exit(1);
}

void check(int status, const char* what) {
  if (status < 0) fail(what);
}
#define CHECK(call) check(call, #call)

double nowUs() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}

void sendAll(int fd, const void* data, size_t bytes) {
  for (auto* next = static_cast<const char*>(data); bytes > 0;) {
    const ssize_t sent = write(fd, next, bytes);
    if (sent <= 0) fail("a write to a socket");
    next += sent;
    bytes -= static_cast<size_t>(sent);
  }
}

bool receiveAll(int fd, void* data, size_t bytes) {
  for (auto* next = static_cast<char*>(data); bytes > 0;) {
    const ssize_t received = read(fd, next, bytes);
    if (received <= 0) return false;
    next += received;
    bytes -= static_cast<size_t>(received);
  }
  return true;
}

void loadLibrary(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) fail("dlopen");
#define RESOLVE(name, result, parameters)                                                          \
  nixl.name = reinterpret_cast<result(*) parameters>(dlsym(library, "nixl_capi_" #name));          \
  if (nixl.name == nullptr) fail("nixl_capi_" #name);
  KVPEER_NIXL_FUNCTIONS(RESOLVE)
  NOTIFICATION_FUNCTIONS(RESOLVE)
#undef RESOLVE
}

struct Memory {
  uint8_t* base;
  Handle agent;
};

// As native/nixl/agents.cc makes them: the receiver has a progress thread, the sender polls.
Memory makeAgent(const char* name, bool isReceiver) {
  Memory memory = {};
  constexpr size_t kAlign = 2u << 20;
  auto* map = static_cast<uint8_t*>(
      mmap(nullptr, kMapBytes + kAlign, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (map == MAP_FAILED) fail("mmap");
  memory.base = map + (kAlign - reinterpret_cast<uintptr_t>(map) % kAlign) % kAlign;
  madvise(memory.base, kMapBytes, MADV_HUGEPAGE);
  memset(memory.base, 0, kMapBytes);
  AgentConfig config = {};
  config.hasProgressThread = isReceiver ? 1 : 0;
  config.syncMode = config.syncModeSuccessor = kvpeer::nixl::kSyncReadWriteLock;
  config.workerCount = 1;
  config.progressDelayUs = config.listenDelayUs = 100000;
  CHECK(nixl.create_configured_agent(name, &config, &memory.agent));
  Handle params = nullptr;
  Handle backend = nullptr;
  CHECK(nixl.create_params(&params));
  CHECK(nixl.create_backend(memory.agent, "UCX", params, &backend));
  Handle list = nullptr;
  CHECK(nixl.create_reg_dlist(kvpeer::nixl::kDram, &list));
  CHECK(nixl.reg_dlist_add_desc(list, reinterpret_cast<uintptr_t>(memory.base), kMapBytes, 0, nullptr, 0));
  CHECK(nixl.register_mem(memory.agent, list, nullptr));
  return memory;
}

// A thread that hands on what it is woken with: what an event loop or an I/O thread does, and nothing else.
class Hop {
 public:
  template <typename Run>
  explicit Hop(Run run) : fd_(eventfd(0, 0)) {
    std::thread([this, run] {
      for (uint64_t count = 0; read(fd_, &count, sizeof count) == sizeof count;) {
        for (;;) {
          std::unique_lock<std::mutex> lock(mutex_);
          if (waiting_.empty()) break;
          const uint64_t number = waiting_.front();
          waiting_.pop_front();
          lock.unlock();
          run(number);
        }
      }
    }).detach();
  }
  void push(uint64_t number) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      waiting_.push_back(number);
    }
    const uint64_t one = 1;
    sendAll(fd_, &one, sizeof one);
  }

 private:
  const int fd_;
  std::mutex mutex_;
  std::deque<uint64_t> waiting_;
};

// ---- producer

void mark(uint8_t* base, uint64_t number, size_t blocks) {
  for (size_t i = 0; i < blocks; ++i) {
    memcpy(base + i * kBlockBytes, &number, sizeof number);
    memcpy(base + (i + 1) * kBlockBytes - sizeof number, &number, sizeof number);
  }
}

class Producer {
 public:
  Producer(const Memory& memory, const char* peer, uint64_t remoteBase)
      : memory_(memory), peer_(peer), remoteBase_(remoteBase) {}

  void writeBlocks(const Order& order) {
    std::vector<Handle> open;
    double progressUs = nowUs();
    for (size_t posted = 0; posted < order.blocks || !open.empty();) {
      bool hasMoved = false;
      while (posted < order.blocks && open.size() < kOpenRequests) {
        const size_t count = std::min(kRequestBlocks, order.blocks - posted);
        const bool isLast = posted + count == order.blocks;
        if (Handle request = post(order, posted, count, isLast && order.way == kNotification)) open.push_back(request);
        posted += count;
        hasMoved = true;
        if (isLast && order.way == kAhead) {
          CHECK(nixl.gen_notif(memory_.agent, peer_, &order.number, sizeof order.number, nullptr));
        }
      }
      for (auto next = open.begin(); next != open.end();) {
        const int status = nixl.get_xfer_status(memory_.agent, *next);
        CHECK(status);
        if (status == kvpeer::nixl::kInProgress) {
          ++next;
          continue;
        }
        release(*next);
        next = open.erase(next);
        hasMoved = true;
      }
      if (hasMoved) progressUs = nowUs();
      if (!open.empty() && nowUs() - progressUs > 50) usleep(50);
    }
  }

 private:
  Handle post(const Order& order, size_t first, size_t count, bool notifies) {
    Handle local = nullptr;
    Handle remote = nullptr;
    Handle request = nullptr;
    Handle args = nullptr;
    CHECK(nixl.create_xfer_dlist(kvpeer::nixl::kDram, &local));
    CHECK(nixl.create_xfer_dlist(kvpeer::nixl::kDram, &remote));
    for (size_t i = first; i < first + count; ++i) {
      // Backwards over there: no two blocks are neighbours on both sides.
      const size_t there = order.blocks - 1 - i;
      CHECK(nixl.xfer_dlist_add_desc(local, reinterpret_cast<uintptr_t>(memory_.base) + i * kBlockBytes, kBlockBytes, 0));
      CHECK(nixl.xfer_dlist_add_desc(remote, remoteBase_ + there * kBlockBytes, kBlockBytes, 0));
    }
    if (notifies) {
      CHECK(nixl.create_opt_args(&args));
      CHECK(nixl.opt_args_set_notif_msg(args, &order.number, sizeof order.number));
      CHECK(nixl.opt_args_set_has_notif(args, true));
    }
    CHECK(nixl.create_xfer_req(memory_.agent, kvpeer::nixl::kWrite, local, remote, peer_, &request, args));
    const int status = nixl.post_xfer_req(memory_.agent, request, args);
    CHECK(status);
    nixl.destroy_xfer_dlist(local);
    nixl.destroy_xfer_dlist(remote);
    if (args != nullptr) nixl.destroy_opt_args(args);
    if (status == kvpeer::nixl::kInProgress) return request;
    release(request);
    return nullptr;
  }

  void release(Handle request) {
    nixl.release_xfer_req(memory_.agent, request);
    nixl.destroy_xfer_req(request);
  }

  const Memory memory_;
  const char* const peer_;
  const uint64_t remoteBase_;
};

[[noreturn]] void produce(int orders, int answers, int direct) {
  const Memory memory = makeAgent("producer", false);
  uint64_t head[2];
  if (!receiveAll(orders, head, sizeof head)) fail("the metadata");
  std::string blob(head[0], '\0');
  if (!receiveAll(orders, blob.data(), blob.size())) fail("the metadata");
  char* peer = nullptr;
  CHECK(nixl.load_remote_md(memory.agent, blob.data(), blob.size(), &peer));
  Producer producer(memory, peer, head[1]);
  Hop io([answers](uint64_t number) { sendAll(answers, &number, sizeof number); });
  Hop main([&io](uint64_t number) { io.push(number); });
  for (Order order; receiveAll(orders, &order, sizeof order);) {
    mark(memory.base, order.number, order.blocks);
    producer.writeBlocks(order);
    if (order.way == kDirect) sendAll(direct, &order.number, sizeof order.number);
    else main.push(order.number);
  }
  _exit(0);
}

// ---- consumer

// Looks for notifications while one is expected, after 1/16 of the time waited so far, but not more often than every
// 30 us, first after 150 us: what costs least of what was tried.
class Watch {
 public:
  explicit Watch(Handle agent) : agent_(agent), found_(eventfd(0, EFD_NONBLOCK)), wanted_(eventfd(0, 0)) {
    std::thread([this] { run(); }).detach();
  }
  int fd() const { return found_; }
  void expect(uint64_t number) {
    expected_.store(number);
    const uint64_t one = 1;
    sendAll(wanted_, &one, sizeof one);
  }

 private:
  void run() {
    prctl(PR_SET_TIMERSLACK, 1000UL);
    Handle map = nullptr;
    CHECK(nixl.create_notif_map(&map));
    for (uint64_t count = 0; read(wanted_, &count, sizeof count) == sizeof count;) {
      const double sinceUs = nowUs();
      usleep(150);
      while (!isFound(map)) usleep(static_cast<useconds_t>(std::max(30.0, (nowUs() - sinceUs) / 16)));
      const uint64_t one = 1;
      sendAll(found_, &one, sizeof one);
    }
  }
  bool isFound(Handle map) {
    size_t agents = 0;
    CHECK(nixl.notif_map_clear(map));
    CHECK(nixl.get_notifs(agent_, map, nullptr));
    CHECK(nixl.notif_map_size(map, &agents));
    if (agents == 0) return false;
    const char* name = nullptr;
    const void* text = nullptr;
    size_t bytes = 0;
    CHECK(nixl.notif_map_get_agent_at(map, 0, &name));
    CHECK(nixl.notif_map_get_notif(map, name, 0, &text, &bytes));
    const uint64_t number = expected_.load();
    return bytes == sizeof number && memcmp(text, &number, sizeof number) == 0;
  }

  const Handle agent_;
  const int found_;
  const int wanted_;
  std::atomic<uint64_t> expected_{0};
};

size_t incompleteCount(const uint8_t* base, uint64_t number, size_t blocks) {
  size_t count = 0;
  for (size_t i = 0; i < blocks; ++i) {
    uint64_t first = 0;
    uint64_t last = 0;
    memcpy(&first, base + i * kBlockBytes, sizeof first);
    memcpy(&last, base + (i + 1) * kBlockBytes - sizeof last, sizeof last);
    if (first != number || last != number) ++count;
  }
  return count;
}

class Consumer {
 public:
  Consumer(int orders, int answers, int direct)
      : orders_(orders), direct_(direct), memory_(makeAgent("consumer", true)), watch_(memory_.agent) {
    void* blob = nullptr;
    size_t bytes = 0;
    CHECK(nixl.get_local_md(memory_.agent, &blob, &bytes));
    const uint64_t head[2] = {bytes, reinterpret_cast<uintptr_t>(memory_.base)};
    sendAll(orders_, head, sizeof head);
    sendAll(orders_, blob, bytes);
    answered_ = eventfd(0, EFD_NONBLOCK);
    // The I/O thread of this side.
    std::thread([this, answers] {
      const uint64_t one = 1;
      for (uint64_t number = 0; receiveAll(answers, &number, sizeof number);) sendAll(answered_, &one, sizeof one);
    }).detach();
  }

  // us until the main thread knows; counts the fetch in `torn` when a block is not complete then.
  double fetch(Way way, size_t blocks, size_t* torn) {
    const Order order = {++number_, static_cast<uint32_t>(blocks), way};
    const bool isNotified = way == kNotification || way == kAhead;
    const double startUs = nowUs();
    sendAll(orders_, &order, sizeof order);
    if (isNotified) watch_.expect(order.number);
    double knownUs = 0;
    bool isAnswered = way == kDirect;
    while (knownUs == 0 || !isAnswered) {
      pollfd fds[] = {{answered_, POLLIN, 0}, {direct_, POLLIN, 0}, {watch_.fd(), POLLIN, 0}};
      if (poll(fds, 3, 10000) <= 0) fail("a fetch in 10 s");
      uint64_t ignored = 0;
      for (const pollfd& ready : fds) {
        if ((ready.revents & POLLIN) == 0 || read(ready.fd, &ignored, sizeof ignored) != sizeof ignored) continue;
        if (ready.fd == answered_) isAnswered = true;
        if (knownUs != 0 || (isNotified && ready.fd == answered_)) continue;
        knownUs = nowUs();
        if (incompleteCount(memory_.base, order.number, blocks) > 0) ++*torn;
      }
    }
    return knownUs - startUs;
  }

 private:
  const int orders_;
  const int direct_;
  const Memory memory_;
  Watch watch_;
  int answered_ = -1;
  uint64_t number_ = 0;
};

double median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

void measure(Consumer& consumer, int rounds, int perRound) {
  printf("[");
  for (const size_t blocks : kCounts) {
    std::vector<double> p50s[kWays];
    size_t torn[kWays] = {};
    for (int round = -1; round < rounds; ++round) {
      std::vector<double> samples[kWays];
      for (int i = 0; i < perRound; ++i) {
        for (int turn = 0; turn < kWays; ++turn) {
          // Each way comes behind every other one equally often.
          const Way way = static_cast<Way>((turn * (1 + 2 * (i & 1)) + i) % kWays);
          samples[way].push_back(consumer.fetch(way, blocks, &torn[way]));
          usleep(500);
        }
      }
      if (round < 0) std::fill(std::begin(torn), std::end(torn), 0);
      for (int way = 0; way < kWays && round >= 0; ++way) p50s[way].push_back(median(samples[way]));
    }
    printf("%s{\"blocks\":%zu,\"fetchCount\":%d", blocks == kCounts[0] ? "" : ",", blocks, rounds * perRound);
    for (int way = 0; way < kWays; ++way) {
      printf(",\"%s\":{\"torn\":%zu,\"p50Us\":[", kWayNames[way], torn[way]);
      for (size_t i = 0; i < p50s[way].size(); ++i) printf("%s%.1f", i == 0 ? "" : ",", p50s[way][i]);
      printf("]}");
    }
    printf("}");
  }
  printf("]\n");
}

// A connection over loopback: [0] the consumer's end, [1] the producer's.
void connectPair(int ends[2]) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  CHECK(bind(listener, reinterpret_cast<sockaddr*>(&address), bytes));
  CHECK(listen(listener, 1));
  CHECK(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &bytes));
  ends[0] = socket(AF_INET, SOCK_STREAM, 0);
  CHECK(connect(ends[0], reinterpret_cast<sockaddr*>(&address), bytes));
  ends[1] = accept(listener, nullptr, nullptr);
  close(listener);
  const int one = 1;
  for (int i = 0; i < 2; ++i) setsockopt(ends[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) fail("data_completion LIBRARY ROUNDS PER_ROUND");
  int sockets[3][2];
  for (auto& ends : sockets) connectPair(ends);
  const int rounds = atoi(argv[2]);
  const int perRound = atoi(argv[3]);
  const pid_t parent = getpid();
  const pid_t child = fork();
  // Each side keeps its own ends, so that the end of one is seen by the other.
  for (auto& ends : sockets) close(ends[child == 0 ? 0 : 1]);
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    loadLibrary(argv[1]);
    produce(sockets[0][1], sockets[1][1], sockets[2][1]);
  }
  loadLibrary(argv[1]);
  static Consumer consumer(sockets[0][0], sockets[1][0], sockets[2][0]);
  measure(consumer, rounds, perRound);
  fflush(stdout);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  _exit(0);
}
