// The log: one JSON object per line, without bytes and without metadata of peers.

import { expect, it } from 'vitest';
import { createLogger } from '../../src/main/observe/log.js';

function capture(level: 'info' | 'silent' = 'info') {
  const lines: Record<string, unknown>[] = [];
  const write = (line: string) => {
    lines.push(JSON.parse(line) as Record<string, unknown>);
  };
  return { log: createLogger(level, { write }), lines };
}

it('writes level, name, process, time, fields and message', () => {
  const { log, lines } = capture();
  log.child({ part: 'session' }).warn({ peer: '10.0.0.7:5710' }, 'peer is slow');
  log.debug('not written');
  expect(lines).toHaveLength(1);
  expect(lines[0]).toMatchObject({
    level: 'warn',
    name: 'kvpeer',
    pid: process.pid,
    part: 'session',
    peer: '10.0.0.7:5710',
    msg: 'peer is slow',
  });
  expect(lines[0].time).toMatch(/^\d{4}-\d\d-\d\dT/);
});

it('never writes the metadata of an agent, wherever it stands', () => {
  const { log, lines } = capture();
  log.info(
    { agent_metadata: 'secret', connect: { agentMetadata: 'secret' }, a: { b: { metadata: 'secret' } } },
    'x',
  );
  log.info({ agentMetadata: Buffer.from('secret') }, 'x');
  expect(JSON.stringify(lines)).not.toContain('secret');
  expect(JSON.stringify(lines)).not.toContain(Buffer.from('secret').toJSON().data.join(','));
});

it('tells bytes by their length', () => {
  const { log, lines } = capture();
  log.info({ keys: new Uint8Array(36), peer: 'p' }, 'x');
  expect(lines[0]).toMatchObject({ keys: '<36 bytes>', peer: 'p' });
});

it('writes errors with code and stack', () => {
  const { log, lines } = capture();
  log.error({ err: Object.assign(new Error('no room'), { code: 'KVPEER_BUSY' }) }, 'x');
  expect(lines[0].err).toMatchObject({ message: 'no room', code: 'KVPEER_BUSY' });
});

it('is silent when told so', () => {
  const { log, lines } = capture('silent');
  log.fatal('x');
  expect(lines).toEqual([]);
});
