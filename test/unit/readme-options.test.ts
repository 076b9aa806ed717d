// The README's configuration tables cannot drift from the options.

import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { renderOptionsTable } from '../../src/main/options.js';
import { packageRoot } from '../../src/shared/nixl-dir.js';

it('has the option table as the code has it (npm run docs writes it)', () => {
  const readme = readFileSync(join(packageRoot, 'README.md'), 'utf8');
  const found = /<!-- options:[^\n]*-->\n([\s\S]*)<!-- \/options -->/.exec(readme);
  expect(found?.[1].trim()).toBe(renderOptionsTable());
});
