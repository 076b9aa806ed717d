// Memory mappings that start on a 2 MiB boundary, see mappings.h.

#include "region/mappings.h"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace kvpeer {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;

struct Entry {
  size_t usedBytes = 0;
  size_t mappedBytes = 0;
  size_t references = 0;
};

std::mutex tableMutex;

// By base address. Never destroyed: a worker's isolate may drop its last buffer while the process exits.
std::map<const void*, Entry>& table() {
  static auto* entries = new std::map<const void*, Entry>();
  return *entries;
}

size_t roundUp(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

std::string errnoText(const std::string& what) { return what + ": " + std::strerror(errno); }

void note(std::string& reason, const std::string& text) { reason += (reason.empty() ? "" : "; ") + text; }

// Address space of `bytes` bytes from a 2 MiB boundary: reserve more, keep the aligned part, give the slack back.
void* reserveAligned(size_t bytes) {
  const size_t reserved = bytes + kHugePage;
  void* start = mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) return nullptr;
  const auto first = reinterpret_cast<uintptr_t>(start);
  const uintptr_t aligned = roundUp(first, kHugePage);
  if (aligned > first) munmap(start, aligned - first);
  const uintptr_t end = aligned + bytes;
  if (first + reserved > end) munmap(reinterpret_cast<void*>(end), first + reserved - end);
  return reinterpret_cast<void*>(aligned);
}

// A file descriptor of the request's file with the right size, or -1 with the reason.
int openFile(const MapRequest& request, std::string& reason) {
  const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | (request.create ? O_CREAT | O_EXCL : 0);
  const int file = open(request.path.c_str(), flags, 0600);
  if (file < 0) {
    reason = errnoText((request.create ? "cannot create " : "cannot open ") + request.path);
    return -1;
  }
  if (request.create) {
    if (ftruncate(file, static_cast<off_t>(request.bytes)) == 0) return file;
    reason = errnoText("cannot give " + request.path + " its size");
    unlink(request.path.c_str());
  } else {
    struct stat status = {};
    if (fstat(file, &status) == 0 && static_cast<size_t>(status.st_size) >= request.bytes) return file;
    reason = request.path + " has " + std::to_string(status.st_size) + " bytes, fewer than the " +
             std::to_string(request.bytes) + " to map";
  }
  close(file);
  return -1;
}

}  // namespace

MapResult createMapping(const MapRequest& request) {
  MapResult result;
  const bool isFile = !request.path.empty();
  int file = -1;
  if (isFile) {
    file = openFile(request, result.reason);
    if (file < 0) return result;
  }
  const size_t used = roundUp(request.bytes, kPage);
  // Anonymous memory is rounded further so that its last part can be a huge page too.
  const size_t mapped = request.huge && !isFile ? roundUp(used, kHugePage) : used;
  void* base = reserveAligned(mapped);
  if (base != nullptr) {
    const int flags = MAP_FIXED | (isFile ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS);
    if (mmap(base, mapped, PROT_READ | PROT_WRITE, flags, file, 0) == MAP_FAILED) {
      result.reason = errnoText("cannot map " + std::to_string(request.bytes) + " bytes");
      munmap(base, mapped);
      base = nullptr;
    }
  } else {
    result.reason = errnoText("cannot reserve " + std::to_string(request.bytes) + " bytes of address space");
  }
  if (file >= 0) close(file);
  if (base == nullptr) {
    if (request.create) unlink(request.path.c_str());
    return result;
  }
  if (request.huge) {
    result.hugeAdvised = madvise(base, mapped, MADV_HUGEPAGE) == 0;
    if (!result.hugeAdvised) note(result.reason, errnoText("huge pages are not available"));
  }
  if (request.lock) {
    // On fault: a plain mlock would make every page present here, on the caller's thread.
    result.locked = mlock2(base, mapped, MLOCK_ONFAULT) == 0;
    if (!result.locked) note(result.reason, errnoText("the memory cannot be locked (RLIMIT_MEMLOCK, CAP_IPC_LOCK)"));
  }
  result.base = base;
  result.bytes = used;
  std::lock_guard<std::mutex> lock(tableMutex);
  table()[base] = Entry{used, mapped, 1};
  return result;
}

bool retainMapping(const void* base, size_t bytes) {
  std::lock_guard<std::mutex> lock(tableMutex);
  const auto found = table().find(base);
  if (found == table().end() || bytes > found->second.usedBytes) return false;
  found->second.references += 1;
  return true;
}

void releaseMapping(const void* base) {
  std::lock_guard<std::mutex> lock(tableMutex);
  const auto found = table().find(base);
  if (found == table().end()) return;
  found->second.references -= 1;
  if (found->second.references > 0) return;
  munmap(const_cast<void*>(base), found->second.mappedBytes);
  table().erase(found);
}

}  // namespace kvpeer
