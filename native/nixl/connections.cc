// Finds and marks the transport's TCP connections, see connections.h.

#include "nixl/connections.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdlib>
#include <string_view>

namespace kvpeer {
namespace {

std::string_view bytesOf(const void* data, size_t size) { return {static_cast<const char*>(data), size}; }

bool isNamedIn(const std::string& metadata, const sockaddr_storage& remote) {
  auto names = [&](const void* data, size_t size) { return metadata.find(bytesOf(data, size)) != std::string::npos; };
  if (remote.ss_family == AF_INET) {
    const auto& address = reinterpret_cast<const sockaddr_in&>(remote);
    const bool isLoopback = (ntohl(address.sin_addr.s_addr) >> 24) == IN_LOOPBACKNET;
    return names(&address.sin_port, sizeof address.sin_port) &&
           (isLoopback || names(&address.sin_addr, sizeof address.sin_addr));
  }
  if (remote.ss_family == AF_INET6) {
    const auto& address = reinterpret_cast<const sockaddr_in6&>(remote);
    return names(&address.sin6_port, sizeof address.sin6_port) &&
           (IN6_IS_ADDR_LOOPBACK(&address.sin6_addr) || names(&address.sin6_addr, sizeof address.sin6_addr));
  }
  return false;
}

}  // namespace

size_t resetOnClose(const std::string& metadata) {
  DIR* directory = opendir("/proc/self/fd");
  if (directory == nullptr) return 0;
  size_t found = 0;
  while (const dirent* entry = readdir(directory)) {
    if (entry->d_name[0] == '.') continue;
    const int fd = atoi(entry->d_name);
    sockaddr_storage remote = {};
    socklen_t length = sizeof remote;
    // Fails for everything that is not a connected socket.
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&remote), &length) != 0) continue;
    if (!isNamedIn(metadata, remote)) continue;
    const linger discard = {1, 0};
    if (setsockopt(fd, SOL_SOCKET, SO_LINGER, &discard, sizeof discard) == 0) ++found;
  }
  closedir(directory);
  return found;
}

}  // namespace kvpeer
