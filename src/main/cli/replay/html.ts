// The replay's report as one HTML page that needs nothing else: styles, chart library and figures are inlined.
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { PAGE_SCRIPT, PAGE_STYLE } from './page.js';
import {
  describeSuccess,
  findProblems,
  formatBytes,
  formatDataPlane,
  formatFailures,
  formatMicros,
  group,
  type ReplayReport,
} from './report.js';
import { binLatencies, binOverTime } from './series.js';
import type { ReplaySamples } from './tally.js';

/** What the page says about the run beside its report. */
export interface PageDetails {
  /** The trace's file name, or what stands for it. */
  readonly traceName: string;
  readonly blockBytes: number;
  readonly concurrency: number;
  readonly placement: string;
  /** When the run ended. */
  readonly endedAt: Date;
  readonly isInterrupted: boolean;
}

/** The whole page. Reads the chart library from the installed package. */
export async function renderPage(
  report: ReplayReport,
  samples: ReplaySamples,
  details: PageDetails,
): Promise<string> {
  const require = createRequire(import.meta.url);
  const [chartScript, chartStyle] = await Promise.all([
    readFile(require.resolve('uplot/dist/uPlot.iife.min.js'), 'utf8'),
    readFile(require.resolve('uplot/dist/uPlot.min.css'), 'utf8'),
  ]);
  const data = {
    time: binOverTime(samples.requests, report.wallS),
    lookup: { ...binLatencies(samples.lookupUs), p50: report.lookup.p50Us, p99: report.lookup.p99Us },
    load: { ...binLatencies(samples.loadUs), p50: report.load.p50Us, p99: report.load.p99Us },
  };
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>kvpeer replay: ${escapeHtml(details.traceName)}</title>
<style>${chartStyle}${PAGE_STYLE}</style>
</head>
<body>
<header>
<h1>kvpeer replay</h1>
<p>${escapeHtml(describeRun(report, details))}</p>
</header>
${renderVerdict(report, details)}
${renderCards(report)}
<main>
${renderChart('sources', 'Blocks by source over time', 'Stacked: where the blocks of the requests that ended in each bin came from')}
${renderChart('bytes', 'Bytes pulled over time', 'Bytes that consumers pulled from other peers, per second of wall time')}
${renderChart('lookup', 'Lookup latency', 'One remote lookup per request that had a source with more than the local prefix')}
${renderChart('load', 'Load latency', 'All leading hits of a lookup, from the call to the last block published, poisoning of the destinations included')}
</main>
${renderTable(report)}
<script type="application/json" id="data">${escapeJson(data)}</script>
<script>${chartScript}</script>
<script>${PAGE_SCRIPT}</script>
</body>
</html>
`;
}

function describeRun(report: ReplayReport, details: PageDetails): string {
  const peers = `${report.peers.length} peers`;
  const blocks = `${formatBytes(details.blockBytes)} blocks`;
  const ended = details.endedAt.toISOString().replace('T', ' ').slice(0, 19);
  return (
    `${details.traceName}: ${group(report.requests)} requests, ${peers}, ${blocks}, ${details.placement} placement, ` +
    `concurrency ${details.concurrency}; ended ${ended} UTC after ${report.wallS.toFixed(1)} s`
  );
}

function renderVerdict(report: ReplayReport, details: PageDetails): string {
  const problems = findProblems(report);
  const notes = details.isInterrupted ? ['Interrupted: the figures are those of the part that ran.'] : [];
  if (problems.length === 0) {
    return `<p class="verdict good">${escapeHtml([...notes, describeSuccess(report)].join(' '))}</p>`;
  }
  const items = [...notes, ...problems].map((text) => `<li>${escapeHtml(text)}</li>`).join('');
  return `<ul class="verdict bad">${items}</ul>`;
}

function renderCards(report: ReplayReport): string {
  const { blocks, lookup, load } = report;
  const percent = (part: number): string =>
    `${(blocks.referenced === 0 ? 0 : (100 * part) / blocks.referenced).toFixed(1)} % of ${group(blocks.referenced)}`;
  const cards = [
    ['Local hits', group(blocks.local), percent(blocks.local), 'local'],
    ['Pulled', group(blocks.pulled), percent(blocks.pulled), 'pulled'],
    ['Computed', group(blocks.computed), percent(blocks.computed), 'computed'],
    ['Lookup p50', formatMicros(lookup.p50Us), `p99 ${formatMicros(lookup.p99Us)}`, ''],
    ['Load p50', formatMicros(load.p50Us), `p99 ${formatMicros(load.p99Us)}`, ''],
    ['Load rate', `${load.gbPerS.toFixed(2)} GB/s`, `${formatBytes(report.bytesPulled)} pulled`, ''],
  ];
  const items = cards.map(
    ([name, value, note, source]) =>
      `<div class="card ${source}"><span>${name}</span><strong>${escapeHtml(value)}</strong><em>${escapeHtml(note)}</em></div>`,
  );
  return `<section class="cards">${items.join('\n')}</section>`;
}

function renderChart(id: string, title: string, note: string): string {
  return `<figure><figcaption><h2>${title}</h2><p>${note}</p></figcaption><div id="${id}" class="chart"></div></figure>`;
}

function renderTable(report: ReplayReport): string {
  const { served, dataPlane } = report;
  const rows: [string, string][] = [
    ['Blocks that found no slot', group(report.blocks.notStored)],
    ['Bytes served by producers', `${formatBytes(report.bytesServed)} (${group(report.bytesServed)})`],
    ['Bytes pulled by consumers', `${formatBytes(report.bytesPulled)} (${group(report.bytesPulled)})`],
    ['Posts', `${group(served.posts)}, ${served.cut} cut, ${served.failed} failed`],
    [
      'Lookups',
      `${group(report.lookup.count)} of ${group(report.lookup.keys)} keys, at most ${formatMicros(report.lookup.maxUs)}`,
    ],
    ['Loads', `${group(report.load.count)} of ${group(report.load.blocks)} blocks`],
    ['Evictions', group(report.evictions)],
    ['Held at the end', `${report.pins.atEnd} pins, ${report.quarantined.atEnd} slots quarantined`],
    ['Failures', formatFailures(report.failures)],
    ['Bad trace lines', group(report.badLines)],
    ['Event loop, worst peer', `p99 ${report.eventLoop.p99Ms.toFixed(2)} ms late`],
    ['Data plane', formatDataPlane(dataPlane)],
    ['Peers', report.peers.map((peer) => `${peer.id}: pid ${peer.pid}, ${peer.shards} shards`).join('; ')],
  ];
  const lines = rows.map(
    ([name, value]) => `<tr><th scope="row">${name}</th><td>${escapeHtml(value)}</td></tr>`,
  );
  return `<table>${lines.join('\n')}</table>`;
}

const HTML_ESCAPES: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&#39;',
};

function escapeHtml(text: string): string {
  return text.replace(/[&<>"']/g, (character) => HTML_ESCAPES[character]);
}

/** JSON that cannot end its script element. */
function escapeJson(value: unknown): string {
  return JSON.stringify(value).replaceAll('<', '\\u003c');
}
