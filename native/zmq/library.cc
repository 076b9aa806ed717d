// Finds libzmq among the loaded libraries, see library.h.
//
// zeromq.js links it into its addon, whose functions the dynamic linker knows by name. So there is one copy of the
// library, of the version that zeromq.js was built and tested with, and no second one to install.

#include "zmq/library.h"

#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

namespace kvpeer::zmq {
namespace {

std::mutex findMutex;
Functions found;
std::atomic<const Functions*> ready{nullptr};

int addName(dl_phdr_info* library, size_t, void* names) {
  if (library->dlpi_name != nullptr && library->dlpi_name[0] == '/') {
    static_cast<std::vector<std::string>*>(names)->emplace_back(library->dlpi_name);
  }
  return 0;
}

bool resolveAll(void* library, Functions* functions) {
#define KVPEER_ZMQ_RESOLVE(name, result, parameters)                                          \
  functions->name##_ = reinterpret_cast<result(*) parameters>(dlsym(library, "zmq_" #name)); \
  if (functions->name##_ == nullptr) return false;
  KVPEER_ZMQ_FUNCTIONS(KVPEER_ZMQ_RESOLVE)
#undef KVPEER_ZMQ_RESOLVE
  return true;
}

}  // namespace

const Functions* functions() {
  if (const Functions* known = ready.load(); known != nullptr) return known;
  std::lock_guard<std::mutex> lock(findMutex);
  if (ready.load() != nullptr) return ready.load();
  std::vector<std::string> names;
  dl_iterate_phdr(addName, &names);
  for (const std::string& name : names) {
    // NOLOAD: only what is there already. The reference stays: the library is used until the process ends.
    void* library = dlopen(name.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) continue;
    // dlsym also searches what the library depends on; the first one that knows zmq_msg_recv decides.
    if (resolveAll(library, &found)) {
      ready.store(&found);
      return &found;
    }
    dlclose(library);
  }
  return nullptr;
}

}  // namespace kvpeer::zmq
