// Our own declarations of the part of NIXL's C API (libnixl_capi.so) that kvpeer calls. Checked by running them against
// 1.5.1; the library ships no header. Everything is resolved at run time, nothing is linked.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvpeer::nixl {

// Every handle of the C API is an opaque pointer.
using Handle = void*;

enum Status : int { kSuccess = 0, kInProgress = 1 };  // negative: an error
enum MemoryType : int { kDram = 0 };
enum Operation : int { kWrite = 1 };
enum SyncMode : int { kSyncReadWriteLock = 2 };

// The agent's configuration. Up to 1.5.1 the listen port is an int at offset 4 and the sync mode is at offset 8; the
// announced successor has a 16-bit port at offset 2 and the sync mode at offset 4. With the listen thread off neither
// reads the port, and the worker count behind the sync mode is never read, so this one image is right for both.
struct AgentConfig {
  uint8_t hasProgressThread;   // 0
  uint8_t hasListenThread;     // 1
  uint16_t reserved;           // 2
  int32_t syncModeSuccessor;   // 4
  int32_t syncMode;            // 8
  uint32_t workerCount;        // 12
  uint64_t progressDelayUs;    // 16
  uint64_t listenDelayUs;      // 24
  uint8_t hasTelemetry;        // 32
};
static_assert(sizeof(AgentConfig) == 40);
static_assert(offsetof(AgentConfig, syncMode) == 8);
static_assert(offsetof(AgentConfig, progressDelayUs) == 16);
static_assert(offsetof(AgentConfig, hasTelemetry) == 32);

// name without its prefix nixl_capi_, result, parameters
#define KVPEER_NIXL_FUNCTIONS(X)                                                                \
  X(create_configured_agent, int, (const char* name, const AgentConfig*, Handle* agent))        \
  X(destroy_agent, int, (Handle agent))                                                         \
  X(create_params, int, (Handle * params))                                                      \
  X(destroy_params, int, (Handle params))                                                       \
  X(create_backend, int, (Handle agent, const char* plugin, Handle params, Handle* backend))    \
  X(destroy_backend, int, (Handle backend))                                                     \
  X(create_reg_dlist, int, (int memoryType, Handle* list))                                      \
  X(reg_dlist_add_desc, int,                                                                    \
    (Handle list, uintptr_t address, size_t bytes, uint64_t device, const void* tag, size_t tagBytes)) \
  X(destroy_reg_dlist, int, (Handle list))                                                      \
  X(register_mem, int, (Handle agent, Handle list, Handle optional))                            \
  X(deregister_mem, int, (Handle agent, Handle list, Handle optional))                          \
  X(get_local_md, int, (Handle agent, void** blob, size_t* bytes))                              \
  X(load_remote_md, int, (Handle agent, const void* blob, size_t bytes, char** name))           \
  X(invalidate_remote_md, int, (Handle agent, const char* name))                                \
  X(check_remote_md, int, (Handle agent, const char* name, Handle list))                        \
  X(create_xfer_dlist, int, (int memoryType, Handle* list))                                     \
  X(xfer_dlist_add_desc, int, (Handle list, uintptr_t address, size_t bytes, uint64_t device))  \
  X(destroy_xfer_dlist, int, (Handle list))                                                     \
  X(create_xfer_req, int,                                                                       \
    (Handle agent, int operation, Handle local, Handle remote, const char* name, Handle* request, Handle optional)) \
  X(post_xfer_req, int, (Handle agent, Handle request, Handle optional))                        \
  X(get_xfer_status, int, (Handle agent, Handle request))                                       \
  X(release_xfer_req, int, (Handle agent, Handle request))                                      \
  X(destroy_xfer_req, int, (Handle request))

struct Functions {
#define KVPEER_NIXL_DECLARE(name, result, parameters) result(*name) parameters = nullptr;
  KVPEER_NIXL_FUNCTIONS(KVPEER_NIXL_DECLARE)
#undef KVPEER_NIXL_DECLARE

  // Of the announced successor only; null with 1.5.1.
  const char* (*status_string)(int) = nullptr;
  void (*mem_free)(void*) = nullptr;
};

}  // namespace kvpeer::nixl
