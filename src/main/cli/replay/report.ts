// The replay's report: its stable JSON fields, its verdict, and its text form.

/** The fields of `--json`. Names and units are stable: scripts read them. */
export interface ReplayReport {
  /** Requests that ran to their end, with or without a failure. */
  readonly requests: number;
  /** Always: referenced = local + pulled + computed. `notStored` is the part of computed that found no slot. */
  readonly blocks: {
    readonly referenced: number;
    readonly local: number;
    readonly pulled: number;
    readonly computed: number;
    readonly notStored: number;
  };
  readonly bytesPulled: number;
  /** Summed over producers when NIXL reports completion. */
  readonly bytesServed: number;
  readonly served: { readonly posts: number; readonly cut: number; readonly failed: number };
  readonly verify: { readonly blocks: number; readonly mismatches: number };
  readonly lookup: {
    readonly count: number;
    readonly keys: number;
    readonly p50Us: number;
    readonly p99Us: number;
    readonly maxUs: number;
  };
  /** `gbPerS`: 10^9 bytes pulled per second of load, over the sum of all loads' times. */
  readonly load: {
    readonly count: number;
    readonly blocks: number;
    readonly p50Us: number;
    readonly p99Us: number;
    readonly gbPerS: number;
  };
  readonly pins: { readonly atEnd: number };
  readonly quarantined: { readonly atEnd: number };
  readonly evictions: number;
  /** Requests, loads and processes that ended with an error, by code. */
  readonly failures: Readonly<Record<string, number>>;
  readonly badLines: number;
  /** Of the worst peer: how much later than asked the event loop came round. */
  readonly eventLoop: { readonly p99Ms: number };
  readonly dataPlane: {
    readonly name: 'nixl' | 'none';
    readonly version: string;
    /** The lanes as the library names them; empty without a data plane. */
    readonly transports: string;
  };
  readonly peers: readonly { readonly id: number; readonly pid: number; readonly shards: number }[];
  readonly wallS: number;
}

/** Why the run is not a success; empty when it is. Each entry is one sentence for a person. */
export function findProblems(report: ReplayReport): string[] {
  const problems: string[] = [];
  const { blocks, verify, served } = report;
  if (verify.mismatches > 0) {
    problems.push(
      `${verify.mismatches} of ${verify.blocks} pulled blocks did not have the bytes of their key`,
    );
  }
  for (const [code, count] of Object.entries(report.failures)) {
    if (count > 0) problems.push(`${count} ended with ${code}`);
  }
  if (blocks.referenced !== blocks.local + blocks.pulled + blocks.computed) {
    problems.push(
      `${blocks.referenced} blocks were referenced, but local, pulled and computed ones add up to ` +
        String(blocks.local + blocks.pulled + blocks.computed),
    );
  }
  // Of a lost peer nothing is known but that: what it served is missing from the sum.
  const isServedKnown = !('KVPEER_PEER_LOST' in report.failures);
  const isServedExact = served.cut === 0 && served.failed === 0;
  if (
    isServedKnown &&
    (report.bytesServed < report.bytesPulled || (isServedExact && report.bytesServed !== report.bytesPulled))
  ) {
    problems.push(
      `producers served ${report.bytesServed} bytes, but consumers pulled ${report.bytesPulled} bytes`,
    );
  }
  if (report.pins.atEnd > 0) problems.push(`${report.pins.atEnd} pins were still held at the end`);
  return problems;
}

/** One sentence for a run without problems. */
export function describeSuccess({ verify, blocks }: ReplayReport): string {
  return blocks.pulled === 0
    ? 'No block was pulled, so there was nothing to verify.'
    : `Every pulled byte was verified: ${group(verify.blocks)} blocks, no mismatch.`;
}

/** The report for a terminal: one aligned line per figure, problems last. */
export function formatReport(report: ReplayReport): string {
  const { blocks, lookup, load, served, dataPlane } = report;
  const lines: [string, string][] = [
    ['requests', `${group(report.requests)} in ${report.wallS.toFixed(1)} s`],
    ['blocks referenced', group(blocks.referenced)],
    ['  local', share(blocks.local, blocks.referenced)],
    ['  pulled', share(blocks.pulled, blocks.referenced)],
    ['  computed', share(blocks.computed, blocks.referenced)],
    ['  not stored', group(blocks.notStored)],
    ['bytes pulled', formatBytes(report.bytesPulled)],
    [
      'bytes served',
      `${formatBytes(report.bytesServed)} in ${group(served.posts)} posts, ${served.cut} cut, ${served.failed} failed`,
    ],
    ['verified', `${group(report.verify.blocks)} blocks, ${report.verify.mismatches} mismatches`],
    [
      'lookup',
      `${group(lookup.count)} of ${group(lookup.keys)} keys: p50 ${formatMicros(lookup.p50Us)}, ` +
        `p99 ${formatMicros(lookup.p99Us)}, max ${formatMicros(lookup.maxUs)}`,
    ],
    [
      'load',
      `${group(load.count)} of ${group(load.blocks)} blocks: p50 ${formatMicros(load.p50Us)}, ` +
        `p99 ${formatMicros(load.p99Us)}, ${load.gbPerS.toFixed(2)} GB/s`,
    ],
    ['evictions', group(report.evictions)],
    ['at the end', `${report.pins.atEnd} pins, ${report.quarantined.atEnd} slots quarantined`],
    ['failures', formatFailures(report.failures)],
    ['bad trace lines', group(report.badLines)],
    ['event loop p99', `${report.eventLoop.p99Ms.toFixed(1)} ms late (worst peer)`],
    ['data plane', formatDataPlane(dataPlane)],
    ['peers', report.peers.map((peer) => `${peer.id}: pid ${peer.pid}, ${peer.shards} shards`).join('; ')],
  ];
  const width = Math.max(...lines.map(([name]) => name.length));
  const problems = findProblems(report);
  const verdict =
    problems.length === 0 ? [describeSuccess(report)] : problems.map((text) => `PROBLEM: ${text}`);
  return [...lines.map(([name, value]) => `${name.padEnd(width)}  ${value}`), '', ...verdict, ''].join('\n');
}

/** A count with its thousands set apart. */
export function group(count: number): string {
  return count.toLocaleString('en-US');
}

/** Bytes in the largest binary unit that keeps at least one whole. */
export function formatBytes(bytes: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let value = bytes;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return unit === 0 ? `${bytes} B` : `${value.toFixed(value < 10 ? 2 : 1)} ${units[unit]}`;
}

/** Microseconds, as milliseconds or seconds where those read better. */
export function formatMicros(micros: number): string {
  if (micros < 1000) return `${micros.toFixed(0)} us`;
  if (micros < 1_000_000) return `${(micros / 1000).toFixed(2)} ms`;
  return `${(micros / 1_000_000).toFixed(2)} s`;
}

export function formatFailures(failures: Readonly<Record<string, number>>): string {
  const entries = Object.entries(failures);
  return entries.length === 0 ? 'none' : entries.map(([code, count]) => `${code}: ${count}`).join(', ');
}

export function formatDataPlane({ name, version, transports }: ReplayReport['dataPlane']): string {
  return [name, version, transports === '' ? '' : `over ${transports}`]
    .filter((part) => part !== '')
    .join(' ');
}

function share(part: number, whole: number): string {
  const percent = whole === 0 ? 0 : (100 * part) / whole;
  return `${group(part)} (${percent.toFixed(1)} %)`;
}
