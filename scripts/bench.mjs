// `npm run bench -- ARGS`: the set-up, then the benchmarks. Most of them need no NIXL, so its absence only gets a line.
import { packageRoot } from './lib/nixl-dir.mjs';
import { continueIn, setUp } from './lib/setup.mjs';
import { runScript } from './lib/steps.mjs';

await runScript(async () => {
  await setUp(packageRoot, 'optional');
  await continueIn(packageRoot, 'dist/bench/main.js', process.argv.slice(2));
});
