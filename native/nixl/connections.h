// The transport's TCP connections, found by what an agent's metadata says of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvpeer {

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
