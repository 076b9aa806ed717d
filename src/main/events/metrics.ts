// The metrics of KV events, read when they are asked for.

import type { Registry } from 'prom-client';

import { counter, labelled } from '../observe/collectors.js';
import type { NodeEvents } from './start.js';

export function registerEventMetrics(registry: Registry, { events, sockets }: NodeEvents): void {
  counter(
    registry,
    'kvpeer_kv_events_stored_total',
    'Blocks announced as stored',
    () => events.counts.stored,
  );
  counter(
    registry,
    'kvpeer_kv_events_removed_total',
    'Blocks announced as removed',
    () => events.counts.removed,
  );
  counter(
    registry,
    'kvpeer_kv_events_batches_total',
    'Batches of KV events published',
    () => events.counts.batches,
  );
  counter(
    registry,
    'kvpeer_kv_events_restarts_total',
    'Times that the numbering began again',
    () => events.counts.restarts,
  );
  counter(registry, 'kvpeer_kv_events_replays_total', 'Replays answered', () => sockets.replayCount);
  counter(
    registry,
    'kvpeer_kv_events_refused_replays_total',
    'Replay requests that were malformed or too many',
    () => sockets.refusedReplayCount,
  );
  counter(
    registry,
    'kvpeer_kv_events_abandoned_replays_total',
    'Replays that were not read to their end',
    () => sockets.abandonedReplayCount,
  );
  counter(
    registry,
    'kvpeer_kv_events_other_groups_total',
    'Blocks of other cache groups than the first, which are not announced',
    () => events.counts.otherGroups,
  );
  const blocksHelp =
    'Blocks as KV events know them: here, announced, waiting for the tokens of a parent, described but not here';
  labelled(registry, 'kvpeer_kv_events_blocks', blocksHelp, 'state', () => Object.entries(events.blocks));
  const bufferHelp = 'What a replay from 0 is answered from';
  labelled(registry, 'kvpeer_kv_events_buffer', bufferHelp, 'unit', () => Object.entries(events.buffered));
}
