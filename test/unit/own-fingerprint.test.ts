// What a node that trusts the first peer does with fingerprints.

import pino from 'pino';
import { describe, expect, it } from 'vitest';

import { OwnFingerprint } from '../../src/main/own-fingerprint.js';
import type { ConnectMessage } from '../../src/main/protocol/messages.js';

const log = pino({ level: 'silent' });

function connect(configFingerprint: string): ConnectMessage {
  return {
    type: 'connect',
    peerId: '127.0.0.1:1',
    agentMetadata: Buffer.from('none'),
    baseAddr: 0,
    numBlocks: 1,
    blockLen: 4096,
    configFingerprint,
    hashSeed: 'vllm-none-hash',
    kvpeer: undefined,
  };
}

describe('the fingerprint of a node', () => {
  it('stays what it was told, whoever connects', () => {
    for (const told of ['', 'aaaa']) {
      const own = new OwnFingerprint(told, log);
      own.onAccepted(connect('bbbb'));
      expect(own.value).toBe(told);
    }
  });

  it('becomes that of the first peer that has one, once', () => {
    const own = new OwnFingerprint('trust-first', log);
    expect(own.value).toBe('');
    for (const fingerprint of ['', 'aaaa', 'bbbb']) {
      const message = connect(fingerprint);
      own.onAccepted(message);
      own.onRegistered(message, true);
    }
    expect(own.value).toBe('aaaa');
  });

  it('is not taken from a peer that the data plane refuses', () => {
    const own = new OwnFingerprint('trust-first', log);
    const refused = connect('aaaa');
    own.onAccepted(refused);
    expect(own.value).toBe('aaaa');
    own.onRegistered(refused, false);
    expect(own.value).toBe('');
  });
});
