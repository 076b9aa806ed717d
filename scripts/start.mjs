// `npm start -- ARGS`: the set-up, then `kvpeer replay ARGS`.
import { packageRoot } from './lib/nixl-dir.mjs';
import { continueIn, setUp } from './lib/setup.mjs';
import { runScript } from './lib/steps.mjs';

const args = process.argv.slice(2);
const dataPlane = args.flatMap((argument, index) =>
  argument === '--data-plane'
    ? [args[index + 1]]
    : argument.startsWith('--data-plane=')
      ? [argument.slice(13)]
      : [],
);
const isWithoutNixl = (dataPlane.at(-1) ?? process.env.KVPEER_DATA_PLANE) === 'none';

await runScript(async () => {
  await setUp(packageRoot, isWithoutNixl ? 'none' : 'required');
  await continueIn(packageRoot, 'dist/src/main/cli/kvpeer.js', ['replay', ...args]);
});
