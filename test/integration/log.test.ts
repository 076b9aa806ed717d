// The log of a process that ends badly: everything said before is there, in the order in which it was said.

import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { expect, it, onTestFinished } from 'vitest';
import { packageRoot } from '../../src/shared/nixl-dir.js';

const LOG = join(packageRoot, 'dist/src/main/observe/log.js');

/** Arguments of Node for a program that has a `log`. */
function argumentsOf(program: string): string[] {
  const source = `import { createLogger } from ${JSON.stringify(LOG)};\nconst log = createLogger('info');\n${program}`;
  return ['--input-type=module', '--eval', source];
}

function messagesIn(output: string): string[] {
  return output
    .split('\n')
    .filter(Boolean)
    .map((line) => (JSON.parse(line) as { readonly msg: string }).msg);
}

/** The messages that a program logged. */
function messagesOf(program: string): string[] {
  return messagesIn(spawnSync(process.execPath, argumentsOf(program), { encoding: 'utf8' }).stdout);
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

it('goes on while the reader of its log stands still, and tells it afterwards what it has missed', async () => {
  const program = `
    for (let i = 0; i < 20_000; i++) log.info(String(i));
    process.stderr.write('logged');
    setInterval(() => log.info('later'), 1);
  `;
  const child = spawn(process.execPath, argumentsOf(program), {
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  onTestFinished(() => {
    child.kill('SIGKILL');
  });
  // Nothing reads the pipe, which holds less than a tenth.
  expect(String(await once(child.stderr, 'data'))).toBe('logged');
  const messages: string[] = [];
  for await (const line of createInterface(child.stdout)) {
    const { msg } = JSON.parse(line) as { readonly msg: string };
    messages.push(msg);
    if (msg.includes('could not be written')) break;
  }
  const told = messages.pop();
  expect(messages.length).toBeLessThan(19_000);
  expect(messages).toEqual(messages.map((_, i) => String(i)));
  const lost = Number(/^(\d+) lines of the log could not be written/.exec(told ?? '')?.[1]);
  expect(lost).toBeGreaterThanOrEqual(20_000 - messages.length);
});
