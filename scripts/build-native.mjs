// Builds the native addons unless they are up to date. Also the package's install script.
import { buildNative, isNativeBuilt } from './lib/native-build.mjs';
import { packageRoot } from './lib/nixl-dir.mjs';
import { missingForNative, refuseMissing, requireNode } from './lib/requirements.mjs';
import { runScript } from './lib/steps.mjs';

await runScript(async () => {
  requireNode();
  if (!isNativeBuilt(packageRoot)) refuseMissing(await missingForNative(process.env));
  await buildNative(packageRoot);
});
