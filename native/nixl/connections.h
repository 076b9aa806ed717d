// The transport's TCP connections, found by what an agent's metadata says of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvpeer {

// Makes closing this process's connections to the peer discard what they have not sent (a reset instead of an orderly
// end). Without it up to some MiB of a stopped write wait in the kernel and land whenever a frozen peer continues.
// Returns how many connections it found: none with transports that are not TCP.
//
// The metadata names the port on which the peer's transport listens and, but for loopback, its address. A connection
// of something else to a port whose two bytes happen to be in the metadata would be reset on its close as well.
size_t resetOnClose(const std::string& metadata);

// Bytes that have arrived on connections to the port that this agent's own metadata names, but that its progress thread
// has not read: they land in the pool when it does, also when the connection has been reset meanwhile.
uint64_t unreadBytes(const std::string& metadata);

}  // namespace kvpeer
