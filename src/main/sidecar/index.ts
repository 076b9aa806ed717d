// The sidecar as a library.

export { createSidecar, type Sidecar, type SidecarParts } from './sidecar.js';
export type { Decision, SidecarHooks } from './hooks.js';
export type { Prompt, PromptFault } from './prompt.js';
export type { ResolvedSidecarOptions, SidecarOptions } from './options.js';
export type { InferenceApi, Profile } from './routes.js';
