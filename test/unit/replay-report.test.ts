// The replay's report: its figures, its stable fields, its verdict, and a page that needs nothing else.
import { describe, expect, it } from 'vitest';
import { renderPage } from '../../src/main/cli/replay/html.js';
import type { PeerFigures, RequestOutcome, StartedPeer } from '../../src/main/cli/replay/messages.js';
import { findProblems, formatBytes, formatMicros, formatReport } from '../../src/main/cli/replay/report.js';
import { binLatencies, binOverTime } from '../../src/main/cli/replay/series.js';
import { percentile, ReplayTally } from '../../src/main/cli/replay/tally.js';

const BLOCK_BYTES = 4096;

const peers: StartedPeer[] = [11, 12].map((pid) => ({
  pid,
  host: '127.0.0.1',
  port: 1000 + pid,
  shards: 2,
  dataPlane: { name: 'nixl', version: '1.5.1', transports: 'cma' },
}));

function outcome(change: Partial<RequestOutcome> = {}): RequestOutcome {
  return {
    referenced: 10,
    local: 3,
    pulled: 5,
    computed: 2,
    notStored: 0,
    verified: 5,
    mismatches: 0,
    bytesPulled: 5 * BLOCK_BYTES,
    lookup: { keys: 7, micros: 100 },
    load: { blocks: 5, micros: 1000 },
    failures: [],
    ...change,
  };
}

function figures(change: Partial<PeerFigures> = {}): PeerFigures {
  return {
    bytesServed: 5 * BLOCK_BYTES,
    served: { posts: 1, cut: 0, failed: 0 },
    pinsAtEnd: 0,
    quarantinedAtEnd: 0,
    evictions: 0,
    eventLoopP99Ms: 1.5,
    ...change,
  };
}

function tallyOf(outcomes: readonly RequestOutcome[], peerFigures: readonly PeerFigures[]): ReplayTally {
  const tally = new ReplayTally();
  outcomes.forEach((one, index) => {
    tally.addRequest(one, index + 0.5);
  });
  for (const one of peerFigures) tally.addPeer(one);
  return tally;
}

describe('the report', () => {
  it('has exactly the fields that scripts read, summed over requests and peers', () => {
    const noPull = { pulled: 0, computed: 7, verified: 0, bytesPulled: 0, lookup: null, load: null };
    const tally = tallyOf(
      [outcome(), outcome(noPull)],
      [figures(), figures({ bytesServed: 0, eventLoopP99Ms: 4 })],
    );
    tally.badLines = 3;
    expect(tally.report(peers, 2.00049)).toEqual({
      requests: 2,
      blocks: { referenced: 20, local: 6, pulled: 5, computed: 9, notStored: 0 },
      bytesPulled: 20_480,
      bytesServed: 20_480,
      served: { posts: 2, cut: 0, failed: 0 },
      verify: { blocks: 5, mismatches: 0 },
      lookup: { count: 1, keys: 7, p50Us: 100, p99Us: 100, maxUs: 100 },
      load: { count: 1, blocks: 5, p50Us: 1000, p99Us: 1000, gbPerS: 0.02 },
      pins: { atEnd: 0 },
      quarantined: { atEnd: 0 },
      evictions: 0,
      failures: {},
      badLines: 3,
      eventLoop: { p99Ms: 4 },
      dataPlane: { name: 'nixl', version: '1.5.1', transports: 'cma' },
      peers: [
        { id: 0, pid: 11, shards: 2 },
        { id: 1, pid: 12, shards: 2 },
      ],
      wallS: 2,
    });
  });

  it('has numbers in all fields when nothing ran', () => {
    const report = new ReplayTally().report([], 0);
    expect(JSON.stringify(report)).not.toContain('null');
    expect(report.lookup).toEqual({ count: 0, keys: 0, p50Us: 0, p99Us: 0, maxUs: 0 });
  });

  it('takes percentiles from all samples', () => {
    const sorted = Array.from({ length: 200 }, (_, index) => index + 1);
    expect([0.5, 0.99, 1].map((part) => percentile(sorted, part))).toEqual([100, 198, 200]);
    expect(percentile([], 0.5)).toBe(0);
  });
});

describe('the verdict', () => {
  const problemsOf = (one: Partial<RequestOutcome>, two: Partial<PeerFigures> = {}): string[] =>
    findProblems(tallyOf([outcome(one)], [figures(two)]).report(peers, 1));

  it('is a success when all is verified and nothing failed', () => {
    expect(problemsOf({})).toEqual([]);
  });

  it('does not mind blocks that found no slot', () => {
    expect(problemsOf({ notStored: 2 })).toEqual([]);
  });

  it('names mismatches, failures, and pins that are left', () => {
    expect(problemsOf({ mismatches: 1 })).toEqual([expect.stringContaining('1 of 5 pulled blocks')]);
    expect(problemsOf({ failures: ['KVPEER_BUSY'] })).toEqual(['1 ended with KVPEER_BUSY']);
    expect(problemsOf({}, { pinsAtEnd: 2 })).toEqual([expect.stringContaining('2 pins')]);
  });

  it('asks for as many bytes served as pulled, or more where a write was cut or failed', () => {
    const cut = { posts: 2, cut: 1, failed: 0 };
    const more = 6 * BLOCK_BYTES;
    expect(problemsOf({}, { bytesServed: more })).toEqual([expect.stringContaining('producers served')]);
    expect(problemsOf({}, { bytesServed: more, served: cut })).toEqual([]);
    expect(problemsOf({}, { bytesServed: BLOCK_BYTES, served: cut })).toHaveLength(1);
  });

  it('finds blocks that are not accounted for', () => {
    expect(problemsOf({ computed: 1 })).toEqual([expect.stringContaining('add up to 9')]);
  });
});

describe('the text form', () => {
  it('shows counts, shares and problems', () => {
    const text = formatReport(tallyOf([outcome({ mismatches: 1 })], [figures()]).report(peers, 1));
    expect(text).toMatch(/pulled\s+5 \(50\.0 %\)/);
    expect(text).toContain('PROBLEM: 1 of 5');
  });

  it('writes sizes and times in units that read well', () => {
    expect([0, 1023, 4096, 5 * 1024 ** 3].map(formatBytes)).toEqual([
      '0 B',
      '1023 B',
      '4.00 KiB',
      '5.00 GiB',
    ]);
    expect([12, 1500, 2_500_000].map(formatMicros)).toEqual(['12 us', '1.50 ms', '2.50 s']);
  });
});

describe('the charts', () => {
  it('lose no block and no byte in their bins', () => {
    const requests = Array.from({ length: 500 }, (_, index) => ({
      atS: (index + 1) / 37,
      local: 1,
      pulled: 2,
      computed: 3,
      bytesPulled: 8192,
    }));
    const endS = 500 / 37;
    const { timeS, pulledPerS, bytesPulledPerS } = binOverTime(requests, endS);
    const binS = timeS[0] * 2;
    const lastWidthS = endS - (timeS.length - 1) * binS;
    const total = (perS: readonly number[]): number =>
      perS.reduce((sum, value, bin) => sum + value * (bin === timeS.length - 1 ? lastWidthS : binS), 0);
    expect(total(pulledPerS)).toBeCloseTo(1000);
    expect(total(bytesPulledPerS)).toBeCloseTo(500 * 8192);
  });

  it('count every latency in a bin around it', () => {
    const { micros, counts } = binLatencies([90, 100, 110, 5000]);
    expect(counts.reduce((sum, count) => sum + count, 0)).toBe(4);
    expect(counts[0]).toBe(0);
    expect(micros[micros.length - 1]).toBeGreaterThan(5000);
    expect(binLatencies([])).toEqual({ micros: [], counts: [] });
  });
});

describe('the page', () => {
  const render = async (traceName: string): Promise<string> => {
    const tally = tallyOf([outcome()], [figures()]);
    return renderPage(tally.report(peers, 1), tally.samples, {
      traceName,
      blockBytes: BLOCK_BYTES,
      concurrency: 1,
      placement: 'round-robin',
      endedAt: new Date(0),
      isInterrupted: false,
    });
  };

  it('holds everything it needs: nothing is fetched from anywhere', async () => {
    const page = await render('trace.jsonl');
    expect(page).not.toMatch(/<(script|img|link|iframe)[^>]*\s(src|href)=/i);
    expect(page).not.toMatch(/@import|url\(|fetch\(|XMLHttpRequest/);
    expect(page).toContain('uPlot');
  });

  it('shows a trace name as text, whatever it contains', async () => {
    const page = await render('</script><script>alert(1)</script>');
    expect(page).not.toContain('<script>alert');
    expect(page).toContain('&lt;script&gt;alert');
  });

  it('carries the data of all four charts', async () => {
    const data =
      /<script type="application\/json" id="data">(.*?)<\/script>/s.exec(await render('t'))?.[1] ?? '';
    expect(JSON.parse(data)).toMatchObject({
      time: { endS: 1 },
      lookup: { p50: 100 },
      load: { p99: 1000 },
    });
  });
});
