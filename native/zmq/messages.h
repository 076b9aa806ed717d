// Messages that have arrived and are read where they lie: by the main thread, and by the worker that matches their keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "zmq/library.h"

namespace kvpeer::zmq {

// One received part; its memory is libzmq's and goes with it.
class Message {
 public:
  explicit Message(const Functions& library) : library_(library) { library_.msg_init_(&raw_); }
  ~Message() { library_.msg_close_(&raw_); }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;

  // Bytes received, or -1 with libzmq's error number.
  int receive(void* socket, int flags) { return library_.msg_recv_(&raw_, socket, flags); }
  const uint8_t* data() const { return static_cast<const uint8_t*>(library_.msg_data_(&raw_)); }
  size_t size() const { return library_.msg_size_(&raw_); }
  bool hasMore() const { return library_.msg_more_(&raw_) != 0; }

 private:
  const Functions& library_;
  // msg_data takes no const pointer.
  mutable RawMessage raw_;
};

// The table of the process: tokens are positive int32, not used again while one is in the table.
uint32_t keepMessage(std::shared_ptr<Message> message);
// nullptr when there is none. Whoever has it may read it, also when its token is dropped meanwhile.
std::shared_ptr<Message> findMessage(uint32_t token);
// false when there was none.
bool dropMessage(uint32_t token);
size_t keptMessageCount();

}  // namespace kvpeer::zmq
