// The known faults of the protocol's first implementation (the numbered ones, the lettered ones, and the named cases):
// each has a test here that shows ours does without it, or a sentence why it cannot be ours.

import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';

/** Where the test is: its file below test/, and words of its name. */
type Tested = readonly [file: string, name: string];

const FAULTS: Record<string, Tested | string> = {
  '1': ['unit/sessions.test.ts', 'section 10 number 1, 25'],
  '2': ['unit/producer.test.ts', 'section 10 number 2'],
  '3': ['unit/consumer.test.ts', 'section 10 number 3'],
  '4': ['unit/producer.test.ts', 'section 10 number 4'],
  '5': ['unit/producer.test.ts', 'section 10 number 5'],
  '5a': 'not ours, because a node has no tier below it: no lookup starts a promotion, and a block on its way is pending',
  '5b': ['integration/shards.test.ts', 'say busy when there is no room within the time'],
  '6': ['unit/producer.test.ts', 'section 10 number 6'],
  '7': ['unit/producer.test.ts', 'section 10 number 7'],
  '8': ['integration/control.test.ts', 'number 8'],
  '9': ['unit/producer.test.ts', 'section 10 number 9'],
  '10': ['unit/sessions.test.ts', 'section 10 number 10'],
  '11': ['unit/consumer.test.ts', 'section 10 number 11'],
  '12': ['unit/backoff.test.ts', 'section 10 number 12'],
  '13': ['unit/sessions.test.ts', 'section 10 number 13'],
  '14': 'not ours, because a node is one process that waits for no other rank when it starts',
  '15': ['unit/metrics.test.ts', 'has every name of the design'],
  '16': ['integration/control.test.ts', 'number 16'],
  '17': ['unit/sessions.test.ts', 'section 10 number 17'],
  '18': ['unit/sessions.test.ts', 'section 10 number 18'],
  '19': ['unit/consumer.test.ts', 'section 10 number 19'],
  '20': ['unit/params.test.ts', 'warns by default, names the nearest key'],
  '21': ['unit/sessions.test.ts', 'section 10 number 21'],
  '22': [
    'unit/fingerprint.test.ts',
    'covers the parallel sizes when the layout depends on them, and only then',
  ],
  '23': 'not ours, because the pool of a node is memory of its own process and has no name that another could share by mistake',
  '24': ['unit/fingerprint.test.ts', 'differs for another dtype, chunk, format or replicated rows'],
  '25': ['unit/sessions.test.ts', 'section 10 number 1, 25'],
  '26': 'not ours, because which address holds the blocks is for the orchestrator to know; there is no push',
  '27': 'not ours, because which blocks an engine offloads is an option of the engine',
  '28': ['unit/producer.test.ts', 'section 10 number 28'],
  A: ['integration/control-hostile.test.ts', 'number A'],
  B: ['integration/control.test.ts', 'number B'],
  C: ['unit/consumer.test.ts', 'section 10 C'],
  D: ['unit/sessions.test.ts', 'section 10 D'],
  E: ['unit/protocol-rejections.test.ts', 'number E'],
  F: ['unit/producer.test.ts', 'section 10 F'],
  G: ['unit/producer.test.ts', 'section 10 G'],
  H: ['unit/producer.test.ts', 'section 10 H'],
  I: 'not ours, because a session is known by its ZeroMQ identity alone, other hash algorithms only miss, and NIXL refuses a backend it lacks',
  J: 'not ours, because a request with both roles finishes both of its ids in one call',
  K: ['integration/control.test.ts', 'number K'],
  L: ['unit/consumer.test.ts', 'section 10 L'],
  M: ['unit/sessions.test.ts', 'section 10 M'],
  N: ['unit/sessions.test.ts', 'section 10 N'],
  O: ['unit/sessions.test.ts', 'section 10 O'],
  P: ['unit/sessions.test.ts', 'section 10 P'],
  Q: ['unit/producer.test.ts', 'section 10 Q'],
  R: ['unit/producer.test.ts', 'section 10 R'],
  'identity-without-port': [
    'integration/control-hostile.test.ts',
    'number A: identities that nobody could call back',
  ],
  'identity-bad-port': [
    'integration/control-hostile.test.ts',
    'number A: identities that nobody could call back',
  ],
  'identity-not-utf8': ['unit/address.test.ts', 'number A: an identity that is not UTF-8'],
  'many-identities-exhaust-sockets': ['unit/sessions.test.ts', 'R.10 many-identities-exhaust-sockets'],
  'index-above-int32-prefill': ['unit/producer.test.ts', 'R.10 index-above-int32-prefill'],
  'index-above-int32-symmetric': ['unit/producer.test.ts', 'R.10 index-above-int32-symmetric'],
  'second-answer-flips-hit': ['unit/consumer.test.ts', 'R.10 second-answer-flips-hit'],
  'int-key-allocates': ['unit/protocol-rejections.test.ts', 'int-key-allocates'],
  'bound-ids-grow': ['unit/producer.test.ts', 'R.10 bound-ids-grow'],
  'fetch-after-short-prefill-waits': ['unit/producer.test.ts', 'R.10 fetch-after-short-prefill-waits'],
  'duplicate-keys-never-complete': ['unit/producer.test.ts', 'R.10 duplicate-keys-never-complete'],
  'any-peer-takes-parked-blocks': ['unit/producer.test.ts', 'R.10 any-peer-takes-parked-blocks'],
  'lookup-pins-whole-tier': ['unit/producer.test.ts', 'R.10 lookup-pins-whole-tier'],
  'params-role-not-a-map': ['unit/params.test.ts', 'rejects a %s that is no object'],
  'params-id-unhashable': ['unit/params.test.ts', 'rejects one that is %s'],
  'params-id-int-kills-session': ['unit/params.test.ts', 'rejects one that is %s'],
  'restarted-peer-is-mute': ['integration/control.test.ts', 'restarted-peer-is-mute'],
};

const NUMBERS = [...Array.from({ length: 28 }, (_, i) => String(i + 1)), '5a', '5b'];
const LETTERS = Array.from('ABCDEFGHIJKLMNOPQR');

const TEST_ROOT = join(import.meta.dirname, '..');

/** Lines of a test file on which the words stand inside a quoted name. */
function isNamed(file: string, name: string): boolean {
  return readFileSync(join(TEST_ROOT, file), 'utf8')
    .split('\n')
    .some((line) => line.includes(name) && /['"`]/.test(line) && !line.trimStart().startsWith('//'));
}

describe('a known fault', () => {
  it('is in the list, whatever its number or letter', () => {
    expect([...NUMBERS, ...LETTERS].filter((fault) => !(fault in FAULTS))).toEqual([]);
  });

  it.each(Object.entries(FAULTS))('%s has a test, or cannot be ours', (_fault, answer) => {
    if (typeof answer === 'string') expect(answer).toMatch(/^not ours, because .{20,}/);
    else expect(isNamed(...answer), `no test in ${answer[0]} is named "${answer[1]}"`).toBe(true);
  });
});
