// The log of a process that ends badly: everything said before is there, in the order in which it was said.

import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { packageRoot } from '../../src/shared/nixl-dir.js';

const LOG = join(packageRoot, 'dist/src/main/observe/log.js');

/** The messages that a program logged. */
function messagesOf(program: string): string[] {
  const source = `import { createLogger } from ${JSON.stringify(LOG)};\nconst log = createLogger('info');\n${program}`;
  const { stdout } = spawnSync(process.execPath, ['--input-type=module', '--eval', source], {
    encoding: 'utf8',
  });
  return stdout
    .split('\n')
    .filter(Boolean)
    .map((line) => (JSON.parse(line) as { readonly msg: string }).msg);
}

it('has the last lines of a process that was killed', () => {
  expect(
    messagesOf(
      `log.info('one'); log.child({ part: 'x' }).warn('two'); process.kill(process.pid, 'SIGKILL');`,
    ),
  ).toEqual(['one', 'two']);
});

it('has a fatal line behind the others', () => {
  expect(messagesOf(`for (const name of ['one', 'two', 'three']) log.info(name); log.fatal('end');`)).toEqual(
    ['one', 'two', 'three', 'end'],
  );
});
