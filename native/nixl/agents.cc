// Makes and destroys NIXL agents, see agents.h.

#include "nixl/agents.h"

#include <sys/random.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "nixl/library.h"
#include "nixl/transfers.h"

namespace kvpeer {
namespace {

// Making or destroying a backend runs through process-wide state of UCX, and workers start at the same time.
std::mutex lifecycleMutex;

// With a progress thread this is the time-out of its poll(), not a latency: events wake it at once. The default, 0,
// burns a core; 0.1 s costs an idle node 0.1 % of one.
constexpr uint64_t kProgressDelayUs = 100000;

std::string readBootId() {
  std::string id;
  if (FILE* file = fopen("/proc/sys/kernel/random/boot_id", "re")) {
    char line[64] = {};
    if (fgets(line, sizeof line, file) != nullptr) id.assign(line, strcspn(line, "\n"));
    fclose(file);
  }
  return id.substr(0, 8);
}

// Globally unique: NIXL refuses a second agent of the same name, and a restarted process is another agent.
std::string makeName(Agent::Role role) {
  char host[65] = {};
  gethostname(host, sizeof host - 1);
  uint64_t random = 0;
  if (getrandom(&random, sizeof random, 0) != sizeof random) random = 0;
  char suffix[64];
  snprintf(suffix, sizeof suffix, "%d-%s-%016lx", getpid(), readBootId().c_str(), static_cast<unsigned long>(random));
  return std::string(role == Agent::Role::kReceive ? "kvpeer-receive-" : "kvpeer-send-") + host + "-" + suffix;
}

}  // namespace

std::unique_ptr<Agent> Agent::create(Role role, std::shared_ptr<Mapping> pool, PoolGeometry geometry,
                                     std::string* reason) {
  const nixl::Functions* nixl = nixl::functions();
  if (nixl == nullptr) {
    *reason = "the NIXL library is not loaded";
    return nullptr;
  }
  std::unique_ptr<Agent> agent(new Agent());
  agent->name_ = makeName(role);
  agent->geometry_ = geometry;
  uint8_t* base = pool->base;

  nixl::AgentConfig config = {};
  config.hasProgressThread = role == Role::kReceive ? 1 : 0;
  config.syncMode = config.syncModeSuccessor = nixl::kSyncReadWriteLock;
  config.workerCount = 1;
  config.progressDelayUs = kProgressDelayUs;
  config.listenDelayUs = kProgressDelayUs;

  std::lock_guard<std::mutex> lock(lifecycleMutex);
  int status = nixl->create_configured_agent(agent->name_.c_str(), &config, &agent->handle_);
  if (status != nixl::kSuccess) {
    agent->handle_ = nullptr;
    *reason = "NIXL made no agent: " + nixl::statusText(status);
    return nullptr;
  }
  // From here on the agent's destructor may run, and it takes the lock: keep the object until the lock is gone.
  auto fail = [&](const std::string& what, int code) {
    *reason = what + ": " + nixl::statusText(code);
    nixl->destroy_agent(agent->handle_);
    agent->handle_ = nullptr;
    return nullptr;
  };

  nixl::Handle params = nullptr;
  nixl::Handle backend = nullptr;
  if ((status = nixl->create_params(&params)) != nixl::kSuccess) return fail("NIXL made no parameters", status);
  status = nixl->create_backend(agent->handle_, "UCX", params, &backend);
  nixl->destroy_params(params);
  if (status != nixl::kSuccess) {
    return fail("UCX cannot be used with these settings (UCX_TLS, UCX_NET_DEVICES)", status);
  }
  // Frees the C API's wrapper object only; the backend lives as long as its agent.
  nixl->destroy_backend(backend);

  if ((status = nixl->create_reg_dlist(nixl::kDram, &agent->registration_)) != nixl::kSuccess) {
    agent->registration_ = nullptr;
    return fail("NIXL made no registration list", status);
  }
  status = nixl->reg_dlist_add_desc(agent->registration_, reinterpret_cast<uintptr_t>(base), geometry.spanBytes(), 0,
                                    nullptr, 0);
  if (status == nixl::kSuccess) status = nixl->register_mem(agent->handle_, agent->registration_, nullptr);
  if (status != nixl::kSuccess) return fail("NIXL refused to register the pool", status);

  agent->pool_ = MappingHold(std::move(pool));
  return agent;
}

Agent::~Agent() {
  const nixl::Functions* nixl = nixl::functions();
  if (nixl == nullptr) return;
  if (handle_ != nullptr) {
    std::lock_guard<std::mutex> lock(lifecycleMutex);
    // No deregistration first: it would take the memory from writes that are still going on.
    nixl->destroy_agent(handle_);
  }
  if (registration_ != nullptr) nixl->destroy_reg_dlist(registration_);
}

std::string Agent::metadata() const {
  const nixl::Functions* nixl = nixl::functions();
  void* blob = nullptr;
  size_t bytes = 0;
  if (nixl->get_local_md(handle_, &blob, &bytes) != nixl::kSuccess) return {};
  std::string text(static_cast<const char*>(blob), bytes);
  nixl::freeFromLibrary(blob);
  return text;
}

uint32_t nextAgentHandle() {
  static std::atomic<uint32_t> last{0};
  return last.fetch_add(1) + 1;
}

EnvAgents::EnvAgents() = default;
EnvAgents::~EnvAgents() = default;

}  // namespace kvpeer
