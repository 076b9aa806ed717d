import { defineConfig } from 'vitest/config';

export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    exclude: ['test/vllm/**'],
    // Processes, not threads: NIXL, the addon's clean-up hooks and signal tests each need a process of their own.
    pool: 'forks',
    maxWorkers: 2,
    testTimeout: 60_000,
    hookTimeout: 60_000,
    // A poll waits for an event; vitest's own limit of a second is one that a busy machine exceeds.
    expect: { poll: { timeout: 30_000, interval: 20 } },
  },
});
