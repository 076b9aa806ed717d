// Adds up what the requests and the peers report, and keeps the samples that the report's figures come from.
import type { PeerFigures, RequestOutcome, StartedPeer } from './messages.js';
import type { ReplayReport } from './report.js';

/** One finished request on the replay's own clock, for the charts over time. */
export interface RequestSample {
  readonly atS: number;
  readonly local: number;
  readonly pulled: number;
  readonly computed: number;
  readonly bytesPulled: number;
}

/** What the charts are drawn from. Times of lookups and loads in microseconds, in order of completion. */
export interface ReplaySamples {
  readonly requests: readonly RequestSample[];
  readonly lookupUs: readonly number[];
  readonly loadUs: readonly number[];
}

/** The smallest value that is at least as large as the given share of the values; 0 without values. */
export function percentile(sorted: readonly number[], part: number): number {
  if (sorted.length === 0) return 0;
  return sorted[Math.max(0, Math.ceil(part * sorted.length) - 1)];
}

/** Collects outcomes while the replay runs. All counts are exact; percentiles come from all samples. */
export class ReplayTally {
  badLines = 0;
  readonly #requests: RequestSample[] = [];
  readonly #lookupUs: number[] = [];
  readonly #loadUs: number[] = [];
  readonly #failures = new Map<string, number>();
  readonly #figures: PeerFigures[] = [];
  readonly #sum = {
    requests: 0,
    referenced: 0,
    local: 0,
    pulled: 0,
    computed: 0,
    notStored: 0,
    bytesPulled: 0,
    verified: 0,
    mismatches: 0,
    lookupKeys: 0,
    loadBlocks: 0,
    loadTotalUs: 0,
  };

  get requests(): number {
    return this.#sum.requests;
  }

  get blocks(): Pick<ReplayReport['blocks'], 'local' | 'pulled' | 'computed'> {
    return this.#sum;
  }

  get samples(): ReplaySamples {
    return { requests: this.#requests, lookupUs: this.#lookupUs, loadUs: this.#loadUs };
  }

  /** @param atS  seconds since the first request was dispatched */
  addRequest(outcome: RequestOutcome, atS: number): void {
    const sum = this.#sum;
    sum.requests += 1;
    sum.referenced += outcome.referenced;
    sum.local += outcome.local;
    sum.pulled += outcome.pulled;
    sum.computed += outcome.computed;
    sum.notStored += outcome.notStored;
    sum.bytesPulled += outcome.bytesPulled;
    sum.verified += outcome.verified;
    sum.mismatches += outcome.mismatches;
    if (outcome.lookup !== null) {
      sum.lookupKeys += outcome.lookup.keys;
      this.#lookupUs.push(outcome.lookup.micros);
    }
    if (outcome.load !== null) {
      sum.loadBlocks += outcome.load.blocks;
      sum.loadTotalUs += outcome.load.micros;
      this.#loadUs.push(outcome.load.micros);
    }
    for (const code of outcome.failures) this.addFailure(code);
    const { local, pulled, computed, bytesPulled } = outcome;
    this.#requests.push({ atS, local, pulled, computed, bytesPulled });
  }

  addFailure(code: string): void {
    this.#failures.set(code, (this.#failures.get(code) ?? 0) + 1);
  }

  addPeer(figures: PeerFigures): void {
    this.#figures.push(figures);
  }

  /** The report of everything added so far. */
  report(peers: readonly StartedPeer[], wallS: number): ReplayReport {
    const sum = this.#sum;
    const total = (pick: (figures: PeerFigures) => number): number =>
      this.#figures.reduce((before, figures) => before + pick(figures), 0);
    const lookupUs = this.#lookupUs.toSorted((a, b) => a - b);
    const loadUs = this.#loadUs.toSorted((a, b) => a - b);
    return {
      requests: sum.requests,
      blocks: {
        referenced: sum.referenced,
        local: sum.local,
        pulled: sum.pulled,
        computed: sum.computed,
        notStored: sum.notStored,
      },
      bytesPulled: sum.bytesPulled,
      bytesServed: total((figures) => figures.bytesServed),
      served: {
        posts: total((figures) => figures.served.posts),
        cut: total((figures) => figures.served.cut),
        failed: total((figures) => figures.served.failed),
      },
      verify: { blocks: sum.verified, mismatches: sum.mismatches },
      lookup: {
        count: lookupUs.length,
        keys: sum.lookupKeys,
        p50Us: round(percentile(lookupUs, 0.5), 1),
        p99Us: round(percentile(lookupUs, 0.99), 1),
        maxUs: round(percentile(lookupUs, 1), 1),
      },
      load: {
        count: loadUs.length,
        blocks: sum.loadBlocks,
        p50Us: round(percentile(loadUs, 0.5), 1),
        p99Us: round(percentile(loadUs, 0.99), 1),
        // Bytes per microsecond are 10^6 bytes per second.
        gbPerS: sum.loadTotalUs === 0 ? 0 : round(sum.bytesPulled / sum.loadTotalUs / 1000, 3),
      },
      pins: { atEnd: total((figures) => figures.pinsAtEnd) },
      quarantined: { atEnd: total((figures) => figures.quarantinedAtEnd) },
      evictions: total((figures) => figures.evictions),
      failures: Object.fromEntries([...this.#failures].sort(([a], [b]) => (a < b ? -1 : 1))),
      badLines: this.badLines,
      eventLoop: { p99Ms: round(Math.max(0, ...this.#figures.map((figures) => figures.eventLoopP99Ms)), 2) },
      dataPlane: peers[0]?.dataPlane ?? { name: 'none', version: '', transports: '' },
      peers: peers.map((peer, id) => ({ id, pid: peer.pid, shards: peer.shards })),
      wallS: round(wallS, 3),
    };
  }
}

function round(value: number, digits: number): number {
  return Number(value.toFixed(digits));
}
