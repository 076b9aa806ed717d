// Who a process is, which process a peer is, and under which identity it may write here.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { networkInterfaces } from 'node:os';
import { describe, expect, it } from 'vitest';
import { isAlive, makeIncarnation, processStartTime, readBootId } from '../../src/main/identity.js';
import type { ConnectMessage, Incarnation } from '../../src/main/protocol/messages.js';
import { agentNameOf, unknownWriter, writerIdentity } from '../../src/main/session/writer-identity.js';

function metadata(name: string): Buffer {
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(Buffer.byteLength(name)));
  return Buffer.concat([Buffer.from('nixlSerDes|Agent'), length, Buffer.from(name), Buffer.from('the rest')]);
}

function connect(incarnation?: Incarnation): ConnectMessage {
  return {
    type: 'connect',
    peerId: 'elsewhere:1',
    agentMetadata: metadata('agent-7'),
    baseAddr: 0,
    numBlocks: 1,
    blockLen: 1,
    configFingerprint: '',
    hashSeed: 's',
    kvpeer: incarnation && { version: 1, incarnation, features: [] },
  };
}

describe('an incarnation', () => {
  it('names this process and this boot, and is never the same twice', () => {
    const [first, second] = [makeIncarnation(), makeIncarnation()];
    expect(first).toMatchObject({ pid: process.pid, bootId: readBootId() });
    expect(first.startTime).toBe(processStartTime(process.pid));
    expect(first.id).not.toBe(second.id);
    expect(isAlive(first)).toBe(true);
  });

  it('is not alive in a process that got the same number later', () => {
    const own = makeIncarnation();
    expect(isAlive({ pid: own.pid, startTime: own.startTime - 1 })).toBe(false);
  });

  it('is over when its process has ended, also while nobody has noticed its end', async () => {
    const child = spawn(process.execPath, ['-e', 'process.stdin.resume()'], {
      stdio: ['pipe', 'ignore', 'ignore'],
    });
    const pid = child.pid ?? 0;
    const startTime = processStartTime(pid) ?? -1;
    expect(isAlive({ pid, startTime })).toBe(true);
    const exited = once(child, 'exit');
    child.kill('SIGKILL');
    await exited;
    expect(isAlive({ pid, startTime })).toBe(false);
    expect(processStartTime(pid)).toBeUndefined();
  });

  it('is read behind a command that contains parentheses and spaces', () => {
    const stat = readFileSync('/proc/self/stat', 'utf8');
    const title = process.title;
    process.title = 'a) S 1 (b';
    try {
      expect(readFileSync('/proc/self/stat', 'utf8')).not.toBe(stat);
      expect(processStartTime(process.pid)).toBe(makeIncarnation().startTime);
      expect(processStartTime(process.pid)).toBe(
        Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19]),
      );
    } finally {
      process.title = title;
    }
  });
});

describe('the identity under which a peer may write', () => {
  it('of a kvpeer on this host has the process, once it is seen to run here', () => {
    const own = makeIncarnation();
    expect(writerIdentity('192.0.2.1:1', connect(own))).toEqual({
      address: '192.0.2.1:1',
      incarnation: own.id,
      agentName: 'agent-7',
      isOnThisHost: true,
      process: { pid: own.pid, startTime: own.startTime },
    });
    expect(writerIdentity('192.0.2.1:1', connect({ ...own, pid: 2 ** 31 - 1 })).process).toBeUndefined();
  });

  it('of a kvpeer of another boot is elsewhere, whatever its address and its process number', () => {
    const other = { ...makeIncarnation(), bootId: '6e1f0d5a-0000-4000-8000-000000000000' };
    const writer = writerIdentity('127.0.0.1:1', connect(other));
    expect(writer).toMatchObject({ isOnThisHost: false, process: undefined });
  });

  it('of a plain peer is judged by its address: names, loopback and own addresses may be this host', () => {
    const own = Object.values(networkInterfaces()).flatMap((list) => list ?? []);
    const here = ['localhost:1', 'some-name:1', '127.9.9.9:1', '[::1]:1'];
    here.push(...own.filter(({ family }) => family === 'IPv4').map(({ address }) => `${address}:1`));
    for (const address of here) {
      expect(writerIdentity(address, connect())).toMatchObject({ isOnThisHost: true, process: undefined });
    }
    for (const address of ['192.0.2.1:1', '[2001:db8::1]:1']) {
      expect(writerIdentity(address, connect()).isOnThisHost).toBe(false);
    }
  });

  it('of a peer whose connect has not come is its address alone, taken for this host', () => {
    expect(unknownWriter('192.0.2.1:1')).toMatchObject({
      isOnThisHost: true,
      incarnation: undefined,
      agentName: '',
    });
  });
});

describe('the agent name in NIXL metadata', () => {
  it('stands behind its length', () => {
    expect(agentNameOf(metadata('kvpeer-ä'))).toBe('kvpeer-ä');
  });

  it('is a digest when the metadata has another form: it differs whenever the metadata does', () => {
    const cut = metadata('agent').subarray(0, 26);
    const strange = [Buffer.alloc(0), Buffer.from('x'), Buffer.from('nixlSerDes|Agent'), cut, metadata('')];
    const huge = metadata('agent');
    huge.fill(0xff, 16, 24);
    const names = [...strange, huge, metadata('n'.repeat(257))].map(agentNameOf);
    for (const name of names) expect(name).toMatch(/^[0-9a-f]{64}$/);
    expect(new Set(names).size).toBe(names.length);
  });
});
