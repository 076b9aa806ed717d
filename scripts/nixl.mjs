// Fetches the NIXL library into the package's cache unless KVPEER_NIXL_DIR or the cache has it.
import { packageRoot } from './lib/nixl-dir.mjs';
import { provideNixl } from './lib/nixl-fetch.mjs';
import { runScript } from './lib/steps.mjs';

await runScript(() => provideNixl(packageRoot));
