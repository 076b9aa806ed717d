// The configuration table of the README, rendered from the option table.

import { defaultTextOf, flagOf, OPTION_GROUPS, OPTION_NAMES, specOf, variableOf } from './table.js';

/** All options as Markdown: one table per group. */
export function renderOptionsTable(): string {
  return OPTION_GROUPS.map((group) => {
    const rows = OPTION_NAMES.filter((name) => specOf(name).group === group).map((name) => {
      const spec = specOf(name);
      const flag = spec.placeholder === undefined ? flagOf(name) : `${flagOf(name)} ${spec.placeholder}`;
      const fallback =
        spec.fallbackVariable === undefined ? '' : ` (falls back to \`${spec.fallbackVariable}\`)`;
      const cells = [
        `\`${flag}\``,
        `\`${variableOf(name)}\``,
        `\`${name}\``,
        escapeCell(defaultTextOf(name)),
        escapeCell(`${spec.help}${fallback}; ${spec.allowed}`),
      ];
      return `| ${cells.join(' | ')} |`;
    });
    return [
      `**${group}**`,
      '',
      '| flag | environment | YAML and API | default | meaning |',
      '| --- | --- | --- | --- | --- |',
      ...rows,
    ].join('\n');
  }).join('\n\n');
}

function escapeCell(text: string): string {
  return text.replaceAll('|', '\\|');
}
