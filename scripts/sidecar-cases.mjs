// `npm run test:sidecar [-- ARGUMENTS OF replay_cases.py]`: the cases recorded from the real sidecar, against ours, for both
// profiles. The last line is "N passed, N failed".
// @ts-check
import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { packageRoot } from './lib/nixl-dir.mjs';
import { Problem, runScript } from './lib/steps.mjs';

/**
 * Cases whose outcome is another one here, by intent. Each has a test of our own that states the other outcome: see the
 * place beside it, below test/.
 */
const OTHERWISE = [
  // Connectors and chunked decode that are not here end the start: integration/sidecar-contract, unit/sidecar-options.
  'nixl-',
  'chunked-',
  // Our own metrics, not Go's: integration/sidecar-contract, "--metrics-port".
  'metrics-port',
  // Resolved without a redirect: integration/sidecar, "serves %s as the canonical path".
  'route-double-slash',
  'route-dot-dot',
  // Answered once: integration/sidecar, "answers expect: 100-continue once".
  'headers-pd-expect-continue',
  // A 502, not a closed connection: integration/sidecar, "is a 502 when the model server cuts an answer".
  'decoder-cut-body',
  // Ignored and counted: integration/sidecar, "ignores and counts the source"; unit/sidecar-rules, "the source".
  'source-ok-(empty-port|text-port|port-|path|space-inside|userinfo)',
  // Contract section 3.2 has addresses made canonical before they are compared,
  // rule 7 of 3.3 forbids a pull from oneself; the recorded program does both. integration/sidecar, "knows its own address".
  'source-self-ipv6-other-spelling',
];
/** Recorded from profile A and not marked as different, where the contract's profile B says otherwise. */
const OTHERWISE_B = [
  // Section 1.8: Responses get `store: false` also when absent, and lose their stateful fields, on every path.
  'route-pd-responses',
  'body-caps-responses',
  // Section 1.4: chat's max_completion_tokens is 1 "even if absent". The tool overlooks that in legs to its prefiller, but
  // not where the prefill leg comes to the model server behind this very sidecar.
  'prefiller-self',
  'dp2-prefiller-rank1',
  // Section 1.9: the allow-list has the pool's target ports; the recorded pool's port is another one than the prefiller's.
  'ssrf-prefiller-second-denied',
];
/** The tool parses bodies of 9,990 levels with Python's own recursion. */
const DEEP =
  'import runpy, sys; sys.setrecursionlimit(100000); sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name="__main__")';

await runScript(async () => {
  const folder = resolve(packageRoot, process.env['KVPEER_CONFORMANCE_DIR'] || '../shared/conformance');
  const tool = join(folder, 'sidecar/replay_cases.py');
  if (!existsSync(tool)) {
    throw new Problem(
      `${tool} is not there`,
      'point KVPEER_CONFORMANCE_DIR to the folder that has sidecar/replay_cases.py',
    );
  }
  const sums = { passed: 0, failed: 0 };
  for (const profile of ['A', 'B']) {
    process.stdout.write(`profile ${profile}\n`);
    const { passed, failed } = await replay(tool, profile);
    sums.passed += passed;
    sums.failed += failed;
  }
  process.stdout.write(`${sums.passed} passed, ${sums.failed} failed\n`);
  process.exitCode = sums.failed === 0 && sums.passed > 0 ? 0 : 1;
});

/**
 * @param {string} tool
 * @param {string} profile
 * @returns {Promise<{ passed: number, failed: number }>} a run that breaks off counts as one failure
 */
async function replay(tool, profile) {
  const skipped = profile === 'A' ? OTHERWISE : [...OTHERWISE, ...OTHERWISE_B];
  const program = join(packageRoot, 'dist/src/main/cli/kvpeer.js');
  const child = spawn(
    'python3',
    [
      ...[
        '-c',
        DEEP,
        tool,
        '--profile',
        profile,
        '--skip',
        `^(${skipped.join('|')})`,
        ...process.argv.slice(2),
      ],
      ...['--', process.execPath, program, 'sidecar', '--profile', profile],
    ],
    { stdio: ['ignore', 'pipe', 'inherit'] },
  );
  let counts = { passed: 0, failed: 1 };
  for await (const line of createInterface(child.stdout)) {
    if (!line.startsWith('ok ')) process.stdout.write(`${line}\n`);
    const match = /^(\d+) passed, (\d+) failed$/.exec(line);
    if (match !== null) counts = { passed: Number(match[1]), failed: Number(match[2]) };
  }
  return counts;
}
