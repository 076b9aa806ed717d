// The configuration tables of the README, rendered from the option table.

import {
  defaultTextOf,
  flagOf,
  OPTION_GROUPS,
  OPTION_NAMES,
  specOf,
  variableOf,
  type OptionName,
} from './table.js';

const HEADER = ['flag', 'environment', 'YAML and API', 'default', 'meaning'] as const;

/** All options as Markdown, one table per group, with padded columns as Prettier writes them. */
export function renderOptionsTable(): string {
  return OPTION_GROUPS.map((group) => {
    const rows = OPTION_NAMES.filter((name) => specOf(name).group === group).map(cellsOf);
    return `**${group}**\n\n${renderTable([HEADER, ...rows])}`;
  }).join('\n\n');
}

function cellsOf(name: OptionName): readonly string[] {
  const spec = specOf(name);
  const flag = spec.placeholder === undefined ? flagOf(name) : `${flagOf(name)} ${spec.placeholder}`;
  const fallback = spec.fallbackVariable === undefined ? '' : ` (else \`${spec.fallbackVariable}\`)`;
  const meaning = `${spec.help}; ${spec.allowed}`;
  return [
    `\`${flag}\``,
    `\`${variableOf(name)}\`${fallback}`,
    `\`${name}\``,
    defaultTextOf(name),
    meaning,
  ].map((cell) => cell.replaceAll('|', '\\|'));
}

function renderTable([header, ...rows]: readonly (readonly string[])[]): string {
  const widths = header.map((_, column) => Math.max(...[header, ...rows].map((row) => row[column].length)));
  const line = (cells: readonly string[]): string =>
    `| ${cells.map((cell, column) => cell.padEnd(widths[column])).join(' | ')} |`;
  const rule = widths.map((width) => '-'.repeat(width));
  return [line(header), line(rule), ...rows.map(line)].join('\n');
}
