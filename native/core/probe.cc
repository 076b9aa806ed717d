// The stages of a lookup that run over a whole group, see probe.h.

#include "core/probe.h"

namespace kvpeer {

void startFlights(const ControlMap& control, const Extent& extent, uint32_t first, uint32_t end, int32_t onlyShard,
                  FlightGroup* group) {
  uint32_t count = 0;
  for (uint32_t position = first; position < end; ++position) {
    if (isSkipped(extent, position)) continue;
    const KeyPlace place = control.placeOfKey(extent.key(position));
    if (onlyShard >= 0 && place.shard != static_cast<uint32_t>(onlyShard)) continue;
    Flight& flight = group->flights[count];
    count += 1;
    flight.buckets[0] = control.bucket(place.shard, place.bucketA);
    flight.buckets[1] = control.bucket(place.shard, place.bucketB);
    flight.tag = place.tag;
    flight.position = position;
    __builtin_prefetch(flight.buckets[0]);
    __builtin_prefetch(flight.buckets[1]);
  }
  group->count = count;
}

void findCandidates(SlotRecords records, FlightGroup* group) {
  for (uint32_t index = 0; index < group->count; ++index) {
    Flight& flight = group->flights[index];
    flight.candidates = matchingEntries(flight.buckets[0], flight.buckets[1], flight.tag);
    if (flight.candidates == 0) continue;
    flight.firstSlot = flight.slotOf(records.count, static_cast<uint32_t>(__builtin_ctz(flight.candidates)));
    if (flight.firstSlot < records.count) __builtin_prefetch(records.record(flight.firstSlot), 1);
  }
}

}  // namespace kvpeer
