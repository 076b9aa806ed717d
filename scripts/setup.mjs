// Sets up a checkout: npm packages, native addons, TypeScript, the NIXL library. `--nixl required|optional|none`.
import { packageRoot } from './lib/nixl-dir.mjs';
import { setUp } from './lib/setup.mjs';
import { Problem, runScript } from './lib/steps.mjs';

/** @type {import('./lib/setup.mjs').NixlNeed[]} */
const NEEDS = ['required', 'optional', 'none'];

await runScript(async () => {
  const [flag, need = 'required', ...rest] = process.argv.slice(2).flatMap((argument) => argument.split('='));
  const known = NEEDS.find((name) => name === need);
  if ((flag !== undefined && flag !== '--nixl') || known === undefined || rest.length > 0) {
    throw new Problem('setup.mjs takes one option.', `--nixl ${NEEDS.join('|')}`);
  }
  await setUp(packageRoot, known);
});
