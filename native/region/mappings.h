// Memory mappings that start on a 2 MiB boundary, counted by the process.
#pragma once

#include <cstddef>
#include <string>

namespace kvpeer {

struct MapRequest {
  // Empty: private anonymous memory. Otherwise a file, mapped shared.
  std::string path;
  // The file is made (it must not exist) with this size; otherwise it must have at least this size.
  bool create = false;
  size_t bytes = 0;
  bool huge = false;
  bool lock = false;
};

struct MapResult {
  // nullptr when the mapping failed; `reason` says why.
  void* base = nullptr;
  size_t bytes = 0;
  bool locked = false;
  bool hugeAdvised = false;
  // Why it failed, or what was asked for and not granted.
  std::string reason;
};

// The result holds one reference, to be given back with releaseMapping(). Any thread.
MapResult createMapping(const MapRequest& request);

bool retainMapping(const void* base, size_t bytes);
void releaseMapping(const void* base);

}  // namespace kvpeer
