// The metrics of a node under the names of design.md section 11, read from the node when they are asked for.

import { readdir } from 'node:fs/promises';
import { Counter, Gauge, Registry, type Histogram } from 'prom-client';
import { counter, gauge, labelled, labelledCounter } from './collectors.js';
import type { MismatchCount } from './event-counts.js';
import type { EventLoopDelay } from './event-loop.js';

/** How full the two rings of a worker are, in records. */
export interface RingDepth {
  readonly submission: number;
  readonly completion: number;
}

/**
 * Where the figures come from. Every function is a cheap look at plain numbers, called once per scrape; the hot paths
 * know nothing of metrics.
 */
export interface MetricsSource {
  /** Slots by phase: free, writing, ready, quarantined. */
  slots(): Readonly<Record<string, number>>;
  pins(): number;
  leases(): number;
  /** Sessions by state. A state that has none now may be left out. */
  sessions(): Readonly<Record<string, number>>;
  nixlPeers(): number;
  sockets(): number;
  rejections(): ReadonlyMap<string, number>;
  /** Handshakes refused because the two sides differ in a value both need. */
  mismatches(): Iterable<MismatchCount>;
  misses(): ReadonlyMap<string, number>;
  /** Messages that had no meaning in their state, by type. */
  ignoredMessages(): ReadonlyMap<string, number>;
  /** Hints of routers that had no effect, by reason. */
  ignoredHints(): ReadonlyMap<string, number>;
  hardStops(): number;
  receiveAgentRecycles(): number;
  workerRestarts(): number;
  evictions(): number;
  bytesServed(): number;
  bytesPulled(): number;
  /** Per worker, in their order. */
  ringDepths(): readonly RingDepth[];
  readonly eventLoop: EventLoopDelay;
  readonly histograms: readonly Histogram[];
}

/** Makes the registry of a node. It can be merged with another one; nothing is global. */
export function createMetrics(source: MetricsSource): Registry {
  const registry = new Registry();
  addGauges(registry, source);
  addCounters(registry, source);
  for (const histogram of source.histograms) registry.registerMetric(histogram);
  return registry;
}

function addGauges(registry: Registry, source: MetricsSource): void {
  labelled(registry, 'kvpeer_slots', 'Slots of the pool by phase', 'phase', () =>
    Object.entries(source.slots()),
  );
  labelled(registry, 'kvpeer_sessions', 'Sessions by state', 'state', () =>
    Object.entries(source.sessions()),
  );
  gauge(registry, 'kvpeer_pins', 'Pins on slots', () => source.pins());
  gauge(registry, 'kvpeer_leases', 'Leases that hold pins', () => source.leases());
  gauge(registry, 'kvpeer_nixl_peers', 'Peers registered with NIXL', () => source.nixlPeers());
  gauge(registry, 'kvpeer_sockets', 'Open ZeroMQ sockets', () => source.sockets());
  gauge(registry, 'kvpeer_open_fds', 'Open file descriptors of the process', openDescriptorCount);
  const delayHelp = 'Delay of the event loop since the last scrape';
  labelled(registry, 'kvpeer_event_loop_delay_seconds', delayHelp, 'quantile', () => {
    const { eventLoop } = source;
    const values: [string, number][] = [
      ['0.5', eventLoop.percentileMs(50) / 1000],
      ['0.99', eventLoop.percentileMs(99) / 1000],
      ['1', eventLoop.maxMs() / 1000],
    ];
    eventLoop.reset();
    return values;
  });
  const depth = new Gauge({
    name: 'kvpeer_ring_depth',
    help: 'Records in the rings between main thread and worker',
    labelNames: ['worker', 'ring'],
    registers: [registry],
    collect: () => {
      depth.reset();
      for (const [worker, { submission, completion }] of source.ringDepths().entries()) {
        depth.set({ worker, ring: 'submission' }, submission);
        depth.set({ worker, ring: 'completion' }, completion);
      }
    },
  });
}

function addCounters(registry: Registry, source: MetricsSource): void {
  const rejectionHelp = 'What was refused from outside, by reason';
  labelledCounter(registry, 'kvpeer_rejections_total', rejectionHelp, () => source.rejections());
  const mismatches = new Counter({
    name: 'kvpeer_handshake_mismatches_total',
    help: 'Handshakes refused because both sides need the same value, by field, with both values',
    labelNames: ['field', 'ours', 'theirs'],
    registers: [registry],
    collect: () => {
      mismatches.reset();
      for (const { count, field, ours, theirs } of source.mismatches()) {
        mismatches.inc({ field, ours, theirs }, count);
      }
    },
  });
  labelledCounter(registry, 'kvpeer_misses_total', 'Keys that became misses, by reason', () =>
    source.misses(),
  );
  const ignoredHelp = 'Messages that came too late or twice, by type';
  labelledCounter(
    registry,
    'kvpeer_ignored_messages_total',
    ignoredHelp,
    () => source.ignoredMessages(),
    'type',
  );
  const hintHelp = 'Hints of KV routers that had no effect, or parts of them, by reason';
  labelledCounter(registry, 'kvpeer_hints_ignored_total', hintHelp, () => source.ignoredHints());
  counter(registry, 'kvpeer_hard_stops_total', 'Send agents destroyed to stop a write', () =>
    source.hardStops(),
  );
  counter(registry, 'kvpeer_receive_agent_recycles_total', 'Receive agents replaced to end quarantines', () =>
    source.receiveAgentRecycles(),
  );
  counter(registry, 'kvpeer_worker_restarts_total', 'Workers that died and were replaced', () =>
    source.workerRestarts(),
  );
  counter(registry, 'kvpeer_evictions_total', 'Blocks evicted', () => source.evictions());
  counter(registry, 'kvpeer_bytes_served_total', 'Bytes written to other peers', () => source.bytesServed());
  counter(registry, 'kvpeer_bytes_pulled_total', 'Bytes pulled from other peers', () => source.bytesPulled());
}

/** Listing the folder opens one descriptor itself. */
async function openDescriptorCount(): Promise<number> {
  return (await readdir('/proc/self/fd')).length - 1;
}
