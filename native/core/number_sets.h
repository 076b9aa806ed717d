// Two sets that live as long as their env, so that a call allocates only when it is the largest so far.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvpeer {

// Slots of the pool, one bit each, and the list of its members, by which it is emptied: the lists it was filled from
// belong to other threads too and may have changed meanwhile.
class SlotSet {
 public:
  // Empties the set and makes room for slots below `slotCount`.
  void clear(uint32_t slotCount) {
    for (const uint32_t slot : members_) bits_[slot / 64] = 0;
    members_.clear();
    if (bits_.size() * 64 < slotCount) bits_.resize((static_cast<size_t>(slotCount) + 63) / 64);
  }
  bool has(uint32_t slot) const { return (bits_[slot / 64] >> (slot % 64) & 1) != 0; }
  // False when it was there already.
  bool insert(uint32_t slot) {
    if (has(slot)) return false;
    bits_[slot / 64] |= uint64_t{1} << (slot % 64);
    members_.push_back(slot);
    return true;
  }
  size_t size() const { return members_.size(); }

 private:
  std::vector<uint64_t> bits_;
  std::vector<uint32_t> members_;
};

// At most `capacity` numbers (64 bit) with a position each, open addressing at a load of at most one half. An entry
// belongs to the set only when it carries the current round, so clearing costs nothing.
class NumberSet {
 public:
  void clear(uint32_t capacity) {
    size_t size = 16;
    while (size < size_t{capacity} * 2) size *= 2;
    if (entries_.size() < size) {
      entries_.assign(size, Entry{});
      round_ = 0;
    }
    mask_ = entries_.size() - 1;
    if (++round_ == 0) {
      entries_.assign(entries_.size(), Entry{});
      round_ = 1;
    }
  }

  // True when the number was there already with a position for which `isSame` holds; otherwise it is added.
  template <typename IsSame>
  bool findOrInsert(uint64_t number, uint32_t position, IsSame isSame) {
    size_t at = (number * 0x9e3779b97f4a7c15) >> 20 & mask_;
    for (; entries_[at].round == round_; at = (at + 1) & mask_) {
      if (entries_[at].number == number && isSame(entries_[at].position)) return true;
    }
    entries_[at] = Entry{number, position, round_};
    return false;
  }

 private:
  struct Entry {
    uint64_t number = 0;
    uint32_t position = 0;
    uint32_t round = 0;
  };
  std::vector<Entry> entries_;
  size_t mask_ = 0;
  uint32_t round_ = 0;
};

struct MatchScratch {
  SlotSet leased;
  SlotSet taken;
  NumberSet numbers;
};

}  // namespace kvpeer
