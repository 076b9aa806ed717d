// Finds the transport's TCP connections, see connections.h.

#include "nixl/connections.h"

#include <dirent.h>
// The kernel's own header: glibc's tcp_info ends before the byte counts.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cstdlib>
#include <string_view>

namespace kvpeer {
namespace {

std::string_view bytesOf(const void* data, size_t size) { return {static_cast<const char*>(data), size}; }

bool isNamed(const std::string& metadata, const void* data, size_t size) {
  return metadata.find(bytesOf(data, size)) != std::string::npos;
}

bool isPortNamed(const std::string& metadata, const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    const in_port_t port = reinterpret_cast<const sockaddr_in&>(address).sin_port;
    return isNamed(metadata, &port, sizeof port);
  }
  if (address.ss_family == AF_INET6) {
    const in_port_t port = reinterpret_cast<const sockaddr_in6&>(address).sin6_port;
    return isNamed(metadata, &port, sizeof port);
  }
  return false;
}

template <typename Visit>
void forEachDescriptor(Visit visit) {
  DIR* directory = opendir("/proc/self/fd");
  if (directory == nullptr) return;
  while (const dirent* entry = readdir(directory)) {
    if (entry->d_name[0] != '.') visit(atoi(entry->d_name));
  }
  closedir(directory);
}

struct Traffic {
  bool isConnection = false;
  uint64_t inode = 0;
  uint64_t receivedBytes = 0;
  uint64_t unreadBytes = 0;
};

Traffic trafficOf(int fd) {
  Traffic traffic;
  struct stat status = {};
  int unread = 0;
  tcp_info info = {};
  socklen_t length = sizeof info;
  // Received first: what arrives in between counts as unread only, never as read. FIONREAD fails for a listening socket.
  if (fstat(fd, &status) != 0 || getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0 ||
      ioctl(fd, FIONREAD, &unread) != 0) {
    return traffic;
  }
  traffic.isConnection = true;
  traffic.inode = status.st_ino;
  traffic.receivedBytes = info.tcpi_bytes_received;
  traffic.unreadBytes = static_cast<uint64_t>(unread);
  return traffic;
}

}  // namespace

std::vector<Arrival> waitingArrivals(const std::string& metadata) {
  std::vector<Arrival> arrivals;
  forEachDescriptor([&](int fd) {
    sockaddr_storage local = {};
    socklen_t length = sizeof local;
    // Not the remote side: a connection that was reset has none any more, but what it received can still be read.
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&local), &length) != 0 || !isPortNamed(metadata, local)) return;
    const Traffic traffic = trafficOf(fd);
    if (traffic.isConnection && traffic.unreadBytes > 0) {
      arrivals.push_back({fd, traffic.inode, traffic.receivedBytes});
    }
  });
  return arrivals;
}

bool hasBeenRead(const Arrival& arrival) {
  const Traffic traffic = trafficOf(arrival.fd);
  if (!traffic.isConnection || traffic.inode != arrival.inode) return true;
  return traffic.receivedBytes >= arrival.receivedBytes + traffic.unreadBytes;
}

}  // namespace kvpeer
