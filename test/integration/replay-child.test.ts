// A peer process of the replay whose parent is gone, or that hangs.

import { fork } from 'node:child_process';
import { once } from 'node:events';
import { expect, test } from 'vitest';
import { PeerProcess } from '../../src/main/cli/replay/peer-process.js';

const ENTRY = new URL('../../dist/src/main/cli/replay/child.js', import.meta.url);
const SETTINGS = { blockBytes: 4_096, poolBytes: 8 * 1024 * 1024, shards: 2, dataPlane: 'none' } as const;

test('an answer that nobody reads any more does not keep a peer from closing as it should', async () => {
  const child = fork(ENTRY, { stdio: ['ignore', 'ignore', 'pipe', 'ipc'] });
  const errors: Buffer[] = [];
  child.stderr?.on('data', (data: Buffer) => errors.push(data));
  child.send({ call: 1, name: 'start', argument: SETTINGS });
  expect((await once(child, 'message'))[0]).toMatchObject({ call: 1, answer: { pid: child.pid } });

  // The call is there before the end of the channel, and is answered before that is seen.
  child.kill('SIGSTOP');
  child.send({ call: 2, name: 'prefix', argument: [] });
  child.disconnect();
  child.kill('SIGCONT');
  const [status, signal] = (await once(child, 'exit')) as [number | null, string | null];
  expect({ status, signal, errors: Buffer.concat(errors).toString() }).toEqual({
    status: 0,
    signal: null,
    errors: '',
  });
});

test('a peer that is stopped while it starts, or in the middle of a request, is ended too', async () => {
  const starting = new PeerProcess(4, ENTRY, 2_000);
  const start = starting.call('start', SETTINGS);
  const { pid: ofStarting } = starting;
  if (ofStarting === undefined) throw new Error('the peer has no process');
  process.kill(ofStarting, 'SIGSTOP');
  await expect(start).rejects.toMatchObject({ code: 'KVPEER_PEER_LOST' });
  await starting.gone;

  const running = new PeerProcess(5, ENTRY, 2_000);
  const { pid } = await running.call('start', SETTINGS);
  process.kill(pid, 'SIGSTOP');
  await expect(running.call('run', { ids: [1, 2], source: null })).rejects.toMatchObject({
    code: 'KVPEER_PEER_LOST',
    message: expect.stringContaining('did not answer for 2 s') as unknown,
  });
  await running.gone;
});

test('a peer that was stopped and is asked for its prefix is ended, so that the replay ends too', async () => {
  const peer = new PeerProcess(3, ENTRY, 3_000);
  const { pid } = await peer.call('start', SETTINGS);
  expect(await peer.call('prefix', [])).toBe(0);
  process.kill(pid, 'SIGSTOP');
  await expect(peer.call('prefix', [])).rejects.toMatchObject({
    code: 'KVPEER_PEER_LOST',
    message: expect.stringContaining('did not answer for 3 s') as unknown,
  });
  expect((await peer.gone)?.message).toContain('did not answer for 3 s');
});
