// Which texts are addresses, in which spelling, and which addresses may be told to whom.

import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  advertisable,
  formatAddress,
  isLoopback,
  isWildcard,
  parseAddress,
  parseIdentity,
} from '../../src/main/control/address.js';

function reasonOf(text: string): string {
  const parsed = parseAddress(text);
  return parsed.ok ? 'ok' : parsed.reason;
}

describe('an address', () => {
  test.each([
    ['10.0.0.1:5710', '10.0.0.1', 5710],
    ['localhost:1', 'localhost', 1],
    ['decode-0.pods.svc.cluster.local:65535', 'decode-0.pods.svc.cluster.local', 65_535],
    ['my_host:5710', 'my_host', 5710],
  ])('%s is one', (text, host, port) => {
    expect(parseAddress(text)).toEqual({ ok: true, address: { host, port }, text });
  });

  test('number K: an IPv6 literal is one in brackets, and has one spelling', () => {
    for (const spelling of ['[fd00::1]:5710', '[FD00:0:0:0:0:0:0:1]:5710', '[fd00::0001]:5710']) {
      expect(parseAddress(spelling)).toEqual({
        ok: true,
        address: { host: 'fd00::1', port: 5710 },
        text: '[fd00::1]:5710',
      });
    }
    expect(reasonOf('fd00::1:5710')).toMatch(/\[IPv6 address\]/);
    expect(reasonOf('[fe80::1%eth0]:5710')).toMatch(/no host name/);
    expect(reasonOf('[10.0.0.1]:5710')).toMatch(/no host name/);
  });

  test.each([
    ['nocolon', /no colon/],
    ['', /no colon/],
    [':5710', /no host name/],
    ['host:', /no port/],
    ['host:notaport', /no port/],
    ['host:0', /no port/],
    ['host:05710', /no port/],
    ['host:65536', /no port/],
    ['host:+80', /no port/],
    ['host:80 ', /no port/],
    ['ho st:80', /no host name/],
    ['tcp://host:80', /no host name/],
    ['-host:80', /no host name/],
    ['a..b:80', /no host name/],
    ['1.2.3:80', /no host name/],
    ['999.0.0.1:80', /no host name/],
    ['hôte:80', /no host name/],
    [`${'a'.repeat(300)}:80`, /longer than 255/],
  ])('number A: %j is none', (text, reason) => {
    expect(reasonOf(text)).toMatch(reason);
  });

  test('number 16: a wildcard is none', () => {
    for (const text of ['0.0.0.0:5710', '[::]:5710', '[0:0:0:0:0:0:0:0]:5710']) {
      expect(reasonOf(text)).toBe('a wildcard address');
    }
    expect(reasonOf('*:5710')).toMatch(/no host name/);
  });

  test('number A: an identity that is not UTF-8 is none, and no bytes make the reader throw', () => {
    expect(parseIdentity(Buffer.from('ff3a35', 'hex'))).toEqual({ ok: false, reason: 'not UTF-8' });
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 300 }), (bytes) => {
        const parsed = parseIdentity(Buffer.from(bytes));
        return !parsed.ok || parseAddress(parsed.text).ok;
      }),
    );
  });

  test('survives being written and read again', () => {
    const host = fc.oneof(fc.ipV4(), fc.ipV6(), fc.domain());
    fc.assert(
      fc.property(host, fc.integer({ min: 1, max: 65_535 }), (name, port) => {
        const first = parseAddress(formatAddress({ host: name, port }));
        if (!first.ok) return isWildcard(name);
        const second = parseAddress(first.text);
        return second.ok && second.text === first.text && second.address.port === port;
      }),
    );
  });
});

describe('number 16: what may be told to whom', () => {
  const own = new Set(['10.0.0.5', 'fd00::5', '127.0.0.1']);

  test('a wildcard to nobody', () => {
    for (const host of ['0.0.0.0', '::', '*']) expect(advertisable(host, '127.0.0.1', own)).toBe(false);
  });

  test('a loopback address to peers on this host only', () => {
    for (const host of ['127.0.0.1', '127.1.2.3', 'localhost', '::1', '::ffff:127.0.0.1']) {
      expect(isLoopback(host)).toBe(true);
      expect(advertisable(host, '127.0.0.1', own)).toBe(true);
      expect(advertisable(host, '::1', own)).toBe(true);
      expect(advertisable(host, '10.0.0.5', own)).toBe(true);
      expect(advertisable(host, 'fd00::5', own)).toBe(true);
      expect(advertisable(host, '10.0.0.6', own)).toBe(false);
    }
  });

  test('any other address to everybody', () => {
    for (const host of ['10.0.0.5', 'fd00::5', 'decode-0', '::ffff:10.0.0.5']) {
      expect(isLoopback(host)).toBe(false);
      expect(advertisable(host, '10.0.0.6', own)).toBe(true);
    }
  });
});
