// The NIXL library in this process: found by absolute path, loaded once, never unloaded.
#pragma once

#include <string>

#include "nixl/capi.h"

namespace kvpeer::nixl {

// Loads the library and resolves what kvpeer calls. Returns an empty string, or the reason why it cannot be used.
// Idempotent and safe from any thread; a second path after a successful load is refused, since two copies of UCX in
// one process hang.
std::string loadLibrary(const std::string& absolutePath);

// The functions, or nullptr before a successful loadLibrary().
const Functions* functions();

// Gives back memory that the library allocated for its caller.
void freeFromLibrary(void* memory);

// What a status of the C API means, in words.
std::string statusText(int status);

}  // namespace kvpeer::nixl
