import { defineConfig } from 'vitest/config';

/** Tests against vLLM's own code; scripts/test-vllm.mjs prepares what they need. */
export default defineConfig({
  test: {
    include: ['test/vllm/**/*.test.ts'],
    pool: 'forks',
    // Every vLLM process with NIXL keeps a core busy: more files at a time would only slow each other down.
    maxWorkers: 2,
    testTimeout: 90_000,
    hookTimeout: 120_000,
  },
});
