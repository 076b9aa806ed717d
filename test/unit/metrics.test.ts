// The metrics: the names of the design, values read when they are asked for.

import { afterEach, expect, it } from 'vitest';
import { EventCounts } from '../../src/main/observe/event-counts.js';
import { EventLoopDelay } from '../../src/main/observe/event-loop.js';
import { createMetrics, type MetricsSource } from '../../src/main/observe/metrics.js';

const eventLoop = new EventLoopDelay();
afterEach(() => {
  eventLoop.close();
});

function makeSource(counts: EventCounts): MetricsSource & { evicted: number } {
  return {
    evicted: 3,
    slots: () => ({ free: 10, writing: 1, ready: 4, quarantined: 0 }),
    pins: () => 5,
    leases: () => 2,
    sessions: () => ({ ready: 1 }),
    nixlPeers: () => 1,
    sockets: () => 2,
    rejections: () => counts.rejections,
    mismatches: () => counts.mismatches.values(),
    misses: () => counts.misses,
    ignoredMessages: () => counts.ignoredMessages,
    ignoredHints: () => counts.ignoredHints,
    hardStops: () => counts.hardStopCount,
    receiveAgentRecycles: () => 0,
    workerRestarts: () => 0,
    evictions() {
      return this.evicted;
    },
    bytesServed: () => counts.servedBytes,
    bytesPulled: () => counts.pulledBytes,
    ringDepths: () => [
      { submission: 1, completion: 2 },
      { submission: 0, completion: 0 },
    ],
    eventLoop,
    histograms: Object.values(counts.histograms),
  };
}

it('has every name of the design', async () => {
  const text = await createMetrics(makeSource(new EventCounts())).metrics();
  const names = [...text.matchAll(/^# TYPE (\S+) (\S+)$/gm)].map(([, name, type]) => `${type} ${name}`);
  expect(names.sort()).toEqual(
    [
      'gauge kvpeer_slots',
      'gauge kvpeer_pins',
      'gauge kvpeer_leases',
      'gauge kvpeer_sessions',
      'gauge kvpeer_nixl_peers',
      'gauge kvpeer_sockets',
      'gauge kvpeer_open_fds',
      'gauge kvpeer_event_loop_delay_seconds',
      'gauge kvpeer_ring_depth',
      'counter kvpeer_rejections_total',
      'counter kvpeer_handshake_mismatches_total',
      'counter kvpeer_misses_total',
      'counter kvpeer_hints_ignored_total',
      'counter kvpeer_ignored_messages_total',
      'counter kvpeer_hard_stops_total',
      'counter kvpeer_receive_agent_recycles_total',
      'counter kvpeer_worker_restarts_total',
      'counter kvpeer_evictions_total',
      'counter kvpeer_bytes_served_total',
      'counter kvpeer_bytes_pulled_total',
      'histogram kvpeer_lookup_seconds',
      'histogram kvpeer_load_seconds',
      'histogram kvpeer_serve_seconds',
    ].sort(),
  );
});

it('counts refused handshakes with both values, of which peers cannot make more than a bounded number', async () => {
  const counts = new EventCounts();
  const registry = createMetrics(makeSource(counts));
  counts.mismatch({ field: 'hash_seed', ours: '0', theirs: 'x"y\n' });
  counts.mismatch({ field: 'hash_seed', ours: '0', theirs: 'x"y\n' });
  counts.mismatch({ field: 'block_len', ours: '4096', theirs: '9'.repeat(500) });
  const text = await registry.metrics();
  expect(text).toContain(
    String.raw`kvpeer_handshake_mismatches_total{field="hash_seed",ours="0",theirs="x\"y\n"} 2`,
  );
  expect(text).toContain(`theirs="${'9'.repeat(64)}"} 1`);
  expect(text).toContain('kvpeer_rejections_total{reason="mismatch_hash_seed"} 2');
  for (let i = 0; i < 1_000; i++) counts.mismatch({ field: 'hash_seed', ours: '0', theirs: String(i) });
  expect(counts.mismatches.size).toBeLessThan(70);
  expect(/theirs="other"\} (\d+)/.exec(await registry.metrics())?.[1]).toBe('938');
});

it('shows what the node has when it is scraped, and does not add up over scrapes', async () => {
  const counts = new EventCounts();
  const source = makeSource(counts);
  const registry = createMetrics(source);
  counts.miss('peer-down', 7);
  counts.rejection('seed');
  counts.lookupSeconds(0.0002);
  await registry.metrics();
  source.evicted = 4;
  counts.miss('peer-down', 1);
  counts.bytesServed(4096);
  const text = await registry.metrics();
  for (const line of [
    'kvpeer_slots{phase="free"} 10',
    'kvpeer_slots{phase="ready"} 4',
    'kvpeer_sessions{state="ready"} 1',
    'kvpeer_misses_total{reason="peer-down"} 8',
    'kvpeer_rejections_total{reason="seed"} 1',
    'kvpeer_evictions_total 4',
    'kvpeer_bytes_served_total 4096',
    'kvpeer_ring_depth{worker="0",ring="completion"} 2',
    'kvpeer_lookup_seconds_bucket{le="0.00025"} 1',
    'kvpeer_lookup_seconds_count 1',
  ]) {
    expect(text.split('\n')).toContain(line);
  }
  expect(Number(/^kvpeer_open_fds (\d+)$/m.exec(text)?.[1])).toBeGreaterThan(2);
});

it('bounds the number of labels, whatever peers do', () => {
  const counts = new EventCounts();
  for (let i = 0; i < 1000; i++) counts.rejection(`reason ${i}`);
  expect(counts.rejections.size).toBeLessThanOrEqual(65);
  expect(counts.rejections.get('other')).toBe(1000 - 64);
});

it('keeps the registries of two nodes of one process apart', async () => {
  const [first, second] = [new EventCounts(), new EventCounts()];
  first.lookupSeconds(1);
  expect(await createMetrics(makeSource(second)).metrics()).toContain('kvpeer_lookup_seconds_count 0');
  expect(await createMetrics(makeSource(first)).metrics()).toContain('kvpeer_lookup_seconds_count 1');
});
