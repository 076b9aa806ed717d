// The model of llm-d's router for KV events (../shared/conformance/kvevents) as a program, where it is there.

import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { promisify } from 'node:util';

import { packageRoot } from '../../src/shared/nixl-dir.js';

const folder = resolve(
  packageRoot,
  process.env.KVPEER_CONFORMANCE_DIR ?? '../shared/conformance',
  'kvevents',
);

/** `check_events.py`, or undefined where the harness is not there (KVPEER_CONFORMANCE_DIR names its folder). */
export const CHECK_EVENTS = existsSync(join(folder, 'check_events.py'))
  ? join(folder, 'check_events.py')
  : undefined;

/**
 * A Python with pyzmq: that of the vLLM tests, or a small environment below `.cache`, made at the first call (pip's
 * registry, some seconds).
 */
export async function kvEventsPython(): Promise<string> {
  const { KVPEER_CONFORMANCE_PYTHON: prepared } = process.env;
  if (prepared !== undefined && prepared !== '') return prepared;
  const script = [join(folder, 'setup.sh'), join(packageRoot, '.cache/kvevents-conformance')];
  try {
    const { stdout } = await promisify(execFile)('bash', script);
    return stdout.trimEnd().split('\n').at(-1) ?? '';
  } catch (cause) {
    throw new Error(
      'no Python with pyzmq for check_events.py; install Python 3 with venv, or name one in PYTHON',
      { cause },
    );
  }
}
