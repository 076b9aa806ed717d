// `npm run bench:vllm [-- --rounds N --iters N]`: the set-up, vLLM's tier, and both as producers of one client in turns.
// @ts-check
import { conformanceFolder, conformancePython } from './lib/conformance.mjs';
import { packageRoot } from './lib/nixl-dir.mjs';
import { continueIn, setUp } from './lib/setup.mjs';
import { runScript } from './lib/steps.mjs';

await runScript(async () => {
  const folder = conformanceFolder(packageRoot, process.env);
  await setUp(packageRoot, 'required');
  process.env['KVPEER_CONFORMANCE_PYTHON'] = await conformancePython(packageRoot, folder, process.env);
  process.env['KVPEER_CONFORMANCE_DIR'] = folder;
  await continueIn(packageRoot, 'dist/bench/vllm.js', process.argv.slice(2));
});
