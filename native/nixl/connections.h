// The transport's TCP connections, found by what an agent's metadata says of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvpeer {

// Makes closing this process's connections to the peer discard what they have not sent (a reset instead of an orderly
// end). Without it up to some MiB of a stopped write wait in the kernel and land whenever a frozen peer continues.
// Returns how many connections it found: none with transports that are not TCP.
//
// The metadata names the port on which the peer's transport listens and, but for loopback, its address. A connection
// of something else to a port whose two bytes happen to be in the metadata would be reset on its close as well.
size_t resetOnClose(const std::string& metadata);

// What one connection had received but not handed over at some moment.
struct Arrival {
  int fd = -1;
  // Tells the connection from a later one under the same descriptor.
  uint64_t inode = 0;
  // Counted from the connection's start.
  uint64_t receivedBytes = 0;
};

// The connections to the port that this agent's own metadata names on which bytes wait for its progress thread: they
// land in the pool when it reads them, also when the connection has been reset meanwhile.
std::vector<Arrival> waitingArrivals(const std::string& metadata);

// All that had arrived has been read, or was dropped with the connection.
bool hasBeenRead(const Arrival& arrival);

}  // namespace kvpeer
