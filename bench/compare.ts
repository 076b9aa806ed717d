// Ratios of one run to an earlier one, row by row.

import type { BenchResult } from './report.js';
import { figureText } from './rows.js';

export function compareText(before: BenchResult, after: BenchResult): string {
  const earlier = new Map(before.rows.map((row) => [row.name, row]));
  const lines = after.rows.map((row) => {
    const name = row.name.padEnd(36);
    const old = earlier.get(row.name);
    if (row.value === null) return `${name} not measured now`;
    if (old === undefined || old.value === null)
      return `${name} ${figureText(row.value)} ${row.unit} (not measured then)`;
    const ratio = old.value === 0 ? '' : `  x${(row.value / old.value).toFixed(2)}`;
    return `${name} ${figureText(old.value)} -> ${figureText(row.value)} ${row.unit}${ratio}`;
  });
  return [`compared with ${before.date}:`, ...lines].join('\n');
}
