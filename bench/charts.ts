// Small charts as SVG text.

import type { Row } from './rows.js';
import { figureText } from './rows.js';

const FONT = 'font-family="sans-serif" font-size="11"';
const GREEN = '#2b8a3e';
const RED = '#c92a2a';

/** How each goal's value compares with the goal: a bar that stays left of the line holds it. */
export function goalChart(rows: readonly Row[]): string {
  const bars = rows.flatMap((row) => {
    if (row.value === null || row.goal === null || row.value <= 0) return [];
    const share = 'atMost' in row.goal ? row.value / row.goal.atMost : row.goal.atLeast / row.value;
    return [{ row, share }];
  });
  const height = 20 * bars.length + 40;
  const scale = (share: number): number => 260 + 200 * Math.min(2.4, share);
  const lines = bars.map(({ row, share }, i) => {
    const y = 30 + 20 * i;
    const color = row.holds === true ? GREEN : RED;
    return `<text x="254" y="${y + 11}" text-anchor="end" ${FONT}>${row.name}</text>
<rect x="260" y="${y}" width="${(scale(share) - 260).toFixed(1)}" height="14" fill="${color}"/>
<text x="${(scale(share) + 4).toFixed(1)}" y="${y + 11}" ${FONT}>${figureText(row.value ?? 0)}</text>`;
  });
  return svg(
    820,
    height,
    `<text x="460" y="16" text-anchor="middle" ${FONT}>goal</text>
${lines.join('\n')}
<line x1="460" y1="22" x2="460" y2="${height - 8}" stroke="#000" stroke-dasharray="3 3"/>`,
  );
}

const SERIES = [
  { prefix: 'lookup.rtt.', suffix: '.p50Us', title: 'kvpeer to kvpeer', color: '#1864ab' },
  { prefix: 'lookup.echo.', suffix: '.p50Us', title: 'C libzmq echo', color: '#868e96' },
] as const;
const KEY_COUNTS = [1, 16, 128, 1024, 8192] as const;

/** p50 of a lookup against the number of keys, both logarithmic. */
export function lookupChart(rows: readonly Row[]): string {
  const x = (keys: number): number => 60 + Math.log2(keys) * 40;
  const y = (us: number): number => 260 - (Math.log10(Math.max(us, 10)) - 1) * 80;
  const parts = SERIES.flatMap(({ prefix, suffix, title, color }, i) => {
    const points = KEY_COUNTS.flatMap((keys) => {
      const row = rows.find(({ name }) => name === `${prefix}${keys}${suffix}`);
      return row?.value == null ? [] : [{ x: x(keys), y: y(row.value), value: row.value }];
    });
    if (points.length === 0) return [];
    return [
      `<polyline fill="none" stroke="${color}" stroke-width="2" points="${points.map((point) => `${point.x},${point.y.toFixed(1)}`).join(' ')}"/>`,
      ...points.map(
        (point) =>
          `<text x="${point.x}" y="${(point.y - 6).toFixed(1)}" text-anchor="middle" fill="${color}" ${FONT}>${figureText(point.value)}</text>`,
      ),
      `<text x="80" y="${30 + 16 * i}" fill="${color}" ${FONT}>${title}, us</text>`,
    ];
  });
  const axis = KEY_COUNTS.map(
    (keys) => `<text x="${x(keys)}" y="282" text-anchor="middle" ${FONT}>${keys}</text>`,
  );
  return svg(
    640,
    300,
    `<line x1="50" y1="265" x2="620" y2="265" stroke="#000"/>
${axis.join('\n')}
${parts.join('\n')}`,
  );
}

function svg(width: number, height: number, content: string): string {
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">
<rect width="${width}" height="${height}" fill="#fff"/>
${content}
</svg>
`;
}
