// What the session layer counts: plain numbers on the hot path, read when somebody asks for metrics.

import { Histogram } from 'prom-client';
import type { Mismatch } from '../session/handshake.js';
import type { MissReason, SessionCounters } from '../session/roles.js';

/** Labels come partly from what peers do: more reasons than this are counted under one name. */
const MAX_LABELS = 64;
const OTHER = 'other';
/** Longest value of a peer's that becomes a label, in characters. */
const MAX_VALUE_LENGTH = 64;

/** Refused handshakes with the same two values. */
export interface MismatchCount extends Mismatch {
  count: number;
}

/** Seconds, from the 10 us of a local lookup to the 8 s of its deadline. */
const LOOKUP_BUCKETS = [
  1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5,
  10,
];
/** Seconds, from one small write to the 30 s of a deadline and beyond. */
const TRANSFER_BUCKETS = [
  1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60,
];

/** The counters of the session layer and the histograms of its work. */
export class EventCounts implements SessionCounters {
  readonly rejections = new Map<string, number>();
  /** By field and both values, at most {@link MAX_LABELS}. */
  readonly mismatches = new Map<string, MismatchCount>();
  readonly misses = new Map<string, number>();
  readonly ignoredMessages = new Map<string, number>();
  readonly ignoredHints = new Map<string, number>();
  hardStopCount = 0;
  servedBytes = 0;
  pulledBytes = 0;
  readonly histograms = {
    lookup: histogram('kvpeer_lookup_seconds', 'Time of a lookup as the caller saw it', LOOKUP_BUCKETS),
    load: histogram('kvpeer_load_seconds', 'Time of a load, from the call to its result', TRANSFER_BUCKETS),
    serve: histogram('kvpeer_serve_seconds', 'Time of a serve, from the fetch to its end', TRANSFER_BUCKETS),
  };

  rejection(reason: string): void {
    add(this.rejections, reason, 1);
  }

  /** Also a rejection `mismatch_FIELD`. Peers choose their values: they are cut, and beyond a number of them `other`. */
  mismatch({ field, ours, theirs }: Mismatch): void {
    this.rejection(`mismatch_${field}`);
    const cut = { field, ours: ours.slice(0, MAX_VALUE_LENGTH), theirs: theirs.slice(0, MAX_VALUE_LENGTH) };
    let key = JSON.stringify(cut);
    if (!this.mismatches.has(key) && this.mismatches.size >= MAX_LABELS) {
      cut.theirs = OTHER;
      key = JSON.stringify(cut);
    }
    const known = this.mismatches.get(key);
    if (known) known.count++;
    else this.mismatches.set(key, { ...cut, count: 1 });
  }

  miss(reason: MissReason, keyCount: number): void {
    add(this.misses, reason, keyCount);
  }

  ignored(type: string): void {
    add(this.ignoredMessages, type, 1);
  }

  hintIgnored(reason: string): void {
    add(this.ignoredHints, reason, 1);
  }

  hardStop(): void {
    this.hardStopCount++;
  }

  bytesServed(bytes: number): void {
    this.servedBytes += bytes;
  }

  bytesPulled(bytes: number): void {
    this.pulledBytes += bytes;
  }

  lookupSeconds(seconds: number): void {
    this.histograms.lookup.observe(seconds);
  }

  loadSeconds(seconds: number): void {
    this.histograms.load.observe(seconds);
  }

  serveSeconds(seconds: number): void {
    this.histograms.serve.observe(seconds);
  }
}

function add(counts: Map<string, number>, label: string, count: number): void {
  const key = counts.has(label) || counts.size < MAX_LABELS ? label : OTHER;
  counts.set(key, (counts.get(key) ?? 0) + count);
}

function histogram(name: string, help: string, buckets: number[]): Histogram {
  return new Histogram({ name, help, buckets, registers: [] });
}
