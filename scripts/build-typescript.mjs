// Compiles the TypeScript sources to dist/ unless they are up to date.
import { packageRoot } from './lib/nixl-dir.mjs';
import { runScript } from './lib/steps.mjs';
import { buildTypeScript } from './lib/typescript-build.mjs';

await runScript(() => buildTypeScript(packageRoot));
