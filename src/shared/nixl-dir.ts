// Where the NIXL library is. The rule itself is in scripts/lib/nixl-dir.mjs: set-up needs it before there is a build.

export { NIXL_VERSION, nixlCacheFolder, packageRoot, resolveNixl } from '../../scripts/lib/nixl-dir.mjs';
export type { NixlLocation } from '../../scripts/lib/nixl-dir.mjs';
