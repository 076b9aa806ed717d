// Writes the configuration tables of the README from the option table. Run it after a build.
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { packageRoot } from './lib/nixl-dir.mjs';

const BETWEEN_MARKERS = /(<!-- options:[^\n]*-->\n)[\s\S]*(<!-- \/options -->)/;

const modulePath = join(packageRoot, 'dist/src/main/options/render.js');
const { renderOptionsTable } = await import(pathToFileURL(modulePath).href);
const readmePath = join(packageRoot, 'README.md');
const readme = readFileSync(readmePath, 'utf8');
writeFileSync(
  readmePath,
  readme.replace(BETWEEN_MARKERS, (_, open, close) => `${open}\n${renderOptionsTable()}\n\n${close}`),
);
