// Loads NIXL's C API with dlopen, see library.h.

#include "nixl/library.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <mutex>

namespace kvpeer::nixl {
namespace {

std::mutex loadMutex;
std::string loadedPath;
Functions resolved;
std::atomic<const Functions*> ready{nullptr};

template <typename Function>
bool resolve(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

}  // namespace

std::string loadLibrary(const std::string& absolutePath) {
  std::lock_guard<std::mutex> lock(loadMutex);
  if (ready.load() != nullptr) {
    if (absolutePath == loadedPath) return {};
    return "another copy of NIXL is loaded already: " + loadedPath;
  }
  // dlopen("") succeeds with the program itself, and a bare name would be searched for in places of the loader's choice.
  if (absolutePath.empty() || absolutePath[0] != '/') return "the path of the library is not absolute";

  // RTLD_LOCAL keeps its symbols to itself; RTLD_DEEPBIND would crash in UCX's walk over the environment. The library
  // stays for ever: some of its dependencies cannot be unloaded.
  void* library = dlopen(absolutePath.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    return reason != nullptr ? reason : "dlopen failed";
  }

  std::string missing;
  Functions found;
#define KVPEER_NIXL_RESOLVE(name, result, parameters)                 \
  if (!resolve(library, "nixl_capi_" #name, &found.name)) {           \
    missing += missing.empty() ? "nixl_capi_" #name : ", nixl_capi_" #name; \
  }
  KVPEER_NIXL_FUNCTIONS(KVPEER_NIXL_RESOLVE)
#undef KVPEER_NIXL_RESOLVE
  if (!missing.empty()) return absolutePath + " lacks " + missing;

  resolve(library, "nixl_capi_status_string", &found.status_string);
  resolve(library, "nixl_capi_mem_free", &found.mem_free);
  resolved = found;
  loadedPath = absolutePath;
  ready.store(&resolved);
  return {};
}

const Functions* functions() { return ready.load(); }

void freeFromLibrary(void* memory) {
  const Functions* nixl = functions();
  if (nixl != nullptr && nixl->mem_free != nullptr) {
    nixl->mem_free(memory);
  } else {
    free(memory);
  }
}

std::string statusText(int status) {
  const Functions* nixl = functions();
  if (nixl != nullptr && nixl->status_string != nullptr) {
    const char* text = nixl->status_string(status);
    if (text != nullptr) return text;
  }
  const std::string code = " (NIXL status " + std::to_string(status) + ")";
  switch (status) {
    case 0:
      return "success" + code;
    case 1:
      return "in progress" + code;
    case -1:
      return "invalid parameter" + code;
    case -3:
      return "invalid state" + code;
    case -6:
      return "not found" + code;
    default:
      // 1.5.1 reports a lost connection, refused metadata and a backend's error alike.
      return "backend error or connection lost" + code;
  }
}

}  // namespace kvpeer::nixl
