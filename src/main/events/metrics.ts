// The metrics of KV events, read when they are asked for.

import { Counter, Gauge, type Registry } from 'prom-client';

import type { NodeEvents } from './start.js';

export function registerEventMetrics(registry: Registry, { events, sockets }: NodeEvents): void {
  const total = (name: string, help: string, read: () => number): void => {
    const metric: Counter = new Counter({
      name,
      help,
      registers: [registry],
      collect: () => {
        metric.reset();
        metric.inc(read());
      },
    });
  };
  const labelled = (
    name: string,
    help: string,
    label: string,
    read: () => Readonly<Record<string, number>>,
  ): void => {
    const metric: Gauge = new Gauge({
      name,
      help,
      labelNames: [label],
      registers: [registry],
      collect: () => {
        for (const [value, count] of Object.entries(read())) metric.set({ [label]: value }, count);
      },
    });
  };
  total('kvpeer_kv_events_stored_total', 'Blocks announced as stored', () => events.counts.stored);
  total('kvpeer_kv_events_removed_total', 'Blocks announced as removed', () => events.counts.removed);
  total('kvpeer_kv_events_batches_total', 'Batches of KV events published', () => events.counts.batches);
  total(
    'kvpeer_kv_events_restarts_total',
    'Times that the numbering began again',
    () => events.counts.restarts,
  );
  total('kvpeer_kv_events_replays_total', 'Replays answered', () => sockets.replayCount);
  total(
    'kvpeer_kv_events_refused_replays_total',
    'Replay requests that were malformed or too many',
    () => sockets.refusedReplayCount,
  );
  total(
    'kvpeer_kv_events_other_groups_total',
    'Blocks of other cache groups than the first, which are not announced',
    () => events.counts.otherGroups,
  );
  const blocksHelp =
    'Blocks as KV events know them: here, announced, waiting for the tokens of a parent, described but not here';
  labelled('kvpeer_kv_events_blocks', blocksHelp, 'state', () => events.blocks);
  const bufferHelp = 'What a replay from 0 is answered from';
  labelled('kvpeer_kv_events_buffer', bufferHelp, 'unit', () => events.buffered);
}
