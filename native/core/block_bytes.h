// What is done with the bytes of one block. Blocks are multiples of 4096 bytes on 4096-byte boundaries.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvpeer {

bool hasAvx2();

// `source` may have any alignment.
void copyBlock(uint8_t* target, const uint8_t* source, size_t bytes);
void poisonBlock(uint8_t* target, size_t bytes);

// The content that belongs to a key: words (u64, little endian) 2i and 2i + 1 come from one product, made of the key's
// unseeded hash and i.
void fillBlock(uint8_t* target, size_t bytes, uint64_t keyHash);
bool isFilledBlock(const uint8_t* block, size_t bytes, uint64_t keyHash);

// 64 bits over all bytes; the same on every host.
uint64_t checksumBlock(const uint8_t* block, size_t bytes);

}  // namespace kvpeer
