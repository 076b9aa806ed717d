// Every message in every state of the producer role: what is answered, now and once everything under way has ended.

import { afterAll, describe, expect, it } from 'vitest';
import { Outcome } from '../../src/shared/operations.js';
import { MESSAGE_TYPES } from '../../src/main/protocol/messages.js';
import type { SlotSet } from '../../src/main/shards/shard-client.js';
import type { HarnessOptions, ProducerHarness } from '../fixtures/producer-harness.js';
import { NodeHarness } from '../fixtures/producer-harness.js';

/** Key 1 is READY, key 2 is being written, key 9 is not there; the pair is always (r, 0). */
const STATES = {
  unknown: () => undefined,
  'match under way': ({ node, peer }) => {
    node.shards.hold('match');
    peer.ask('r', 0, 1);
  },
  'lookup parked': ({ peer }) => {
    peer.lookup('r', 0, 1, 2);
  },
  leased: ({ peer }) => {
    peer.lookup('r', 0, 1);
  },
  'answered with misses': ({ peer }) => {
    peer.lookup('r', 0, 9);
  },
  'lease lapsed': ({ node, peer }) => {
    peer.lookup('r', 0, 1);
    node.advance(30_000);
  },
  'demand waiting': ({ peer }) => {
    peer.fetch('r', 0, 9);
  },
  'demand partly under way': ({ peer }) => {
    peer.fetch('r', 0, 1, 9);
  },
  'leased blocks under way': ({ peer }) => {
    writing(peer);
  },
  'aborted, draining': ({ peer }) => {
    writing(peer);
    peer.abort('r', 0);
  },
  'finished, draining': ({ peer }) => {
    writing(peer);
    peer.fetch('r', 1);
  },
  'stopped, sockets not empty': ({ peer }) => {
    writing(peer);
    peer.abort('r', 0);
    peer.endServe(Outcome.Stopped);
  },
  'failed, sockets not empty': ({ peer }) => {
    writing(peer);
    peer.endServe(Outcome.WriteFailed);
  },
  'second fetch waits for the first': ({ peer }) => {
    writing(peer);
    peer.fetch('r', 0, 1);
  },
  served: ({ peer }) => {
    writing(peer);
    peer.endServe();
  },
  'round limit reached': ({ peer }) => {
    for (let i = 0; i < 4; i++) peer.lookup(`other${i}`, 0, 1);
  },
  ended: ({ peer }) => {
    peer.end();
  },
} satisfies Record<string, (setup: Setup) => void>;

type State = keyof typeof STATES;
const MESSAGES = ['lookup', 'fetch', 'fetch without keys', 'abort_fetch'] as const;
const EVENTS = ['blocks published', 'local request ended', '40 s pass', 'session ends'] as const;
const COLUMNS = [...MESSAGES, ...EVENTS] as const;
type Column = (typeof COLUMNS)[number] | 'fetch if held';

interface Setup {
  readonly node: NodeHarness;
  readonly peer: ProducerHarness;
  readonly pending: SlotSet;
}

function writing(peer: ProducerHarness): void {
  peer.lookup('r', 0, 1);
  peer.fetch('r', 0, 1);
}

function setUp(state: State, options: HarnessOptions = {}): Setup {
  const node = new NodeHarness({ limits: { maxRounds: 4 } });
  const peer = node.session({ socketsDrainAtOnce: false, ...options });
  node.put(1);
  const setup = { node, peer, pending: node.reserve(2) };
  STATES[state](setup);
  peer.sent();
  return setup;
}

function receive({ node, peer, pending }: Setup, column: Column): void {
  switch (column) {
    case 'fetch if held':
      peer.fetchHeld('r', 0, 1, 9);
      break;
    case 'lookup':
      peer.ask('r', 0, 1);
      break;
    case 'fetch':
      peer.fetch('r', 0, 1);
      break;
    case 'fetch without keys':
      peer.fetch('r', 0);
      break;
    case 'abort_fetch':
      peer.abort('r', 0);
      break;
    case 'blocks published':
      node.publish(pending);
      break;
    case 'local request ended':
      peer.producer.onDecoderFinished('r');
      break;
    case '40 s pass':
      node.advance(40_000);
      break;
    case 'session ends':
      peer.end();
      break;
  }
  node.shards.resume('match');
  node.shards.settle();
}

/** Pending blocks are published, writes end, sockets run empty. */
function finishAll({ node, peer, pending }: Setup): void {
  if (node.shards.phaseOf(pending.slots[0]) === 'writing') node.publish(pending);
  while (peer.serves.length > 0) peer.endServe();
  peer.drainSockets();
  while (peer.serves.length > 0) peer.endServe();
}

const text = (frames: readonly string[]): string => (frames.length === 0 ? '-' : frames.join(', '));

/** `now / later`: what is sent at once, and once everything under way has ended. */
function outcome(state: State, column: Column, options?: HarnessOptions): string {
  const setup = setUp(state, options);
  receive(setup, column);
  const now = text(setup.peer.sent());
  finishAll(setup);
  const later = text(setup.peer.sent());
  setup.node.advance(700_000);
  expect(setup.node.pins).toBe(0);
  expect(setup.node.budget.total).toBe(0);
  expect(setup.node.shards.totals().openSets).toBe(0);
  expect(setup.node.wakes).toEqual([]);
  return `${now} / ${later}`;
}

/** `now / later` for each cell; `-` is: nothing is sent. Every cell also leaves no pin behind (see outcome()). */
const EXPECTED: Record<State, Record<(typeof COLUMNS)[number], string>> = {
  unknown: {
    lookup: 'lookup_resp r 1 / -',
    fetch: '- / transfer_done r#0 true',
    'fetch without keys': '- / -',
    abort_fetch: 'abort_ack r#0 / -',
    'blocks published': '- / -',
    'local request ended': '- / -',
    '40 s pass': '- / -',
    'session ends': '- / -',
  },
  'match under way': {
    lookup: 'lookup_resp r 1, lookup_resp r 1 / -',
    fetch: '- / transfer_done r#0 true',
    'fetch without keys': '- / -',
    abort_fetch: 'abort_ack r#0 / -',
    'blocks published': 'lookup_resp r 1 / -',
    'local request ended': 'lookup_resp r 1 / -',
    '40 s pass': 'lookup_resp r 1 / -',
    'session ends': '- / -',
  },
  'lookup parked': {
    lookup: 'lookup_resp r 1 / lookup_resp r 11',
    fetch: '- / transfer_done r#0 true',
    'fetch without keys': '- / -',
    abort_fetch: 'abort_ack r#0 / -',
    'blocks published': 'lookup_resp r 11 / -',
    'local request ended': '- / lookup_resp r 11',
    '40 s pass': 'lookup_resp r 10 / -',
    'session ends': '- / -',
  },
  leased: {
    lookup: 'lookup_resp r 1 / -',
    fetch: '- / transfer_done r#0 true',
    'fetch without keys': '- / -',
    abort_fetch: 'abort_ack r#0 / -',
    'blocks published': '- / -',
    'local request ended': '- / -',
    '40 s pass': '- / -',
    'session ends': '- / -',
  },
  'answered with misses': {
    lookup: 'lookup_resp r 1 / -',
    fetch: 'transfer_done r#0 false / -',
    'fetch without keys': '- / -',
    abort_fetch: 'abort_ack r#0 / -',
    'blocks published': '- / -',
    'local request ended': '- / -',
    '40 s pass': '- / -',
    'session ends': '- / -',
  },
  'lease lapsed': {
    lookup: 'lookup_resp r 1 / -',
    fetch: 'transfer_done r#0 false / -',
    'fetch without keys': '- / -',
    abort_fetch: 'abort_ack r#0 / -',
    'blocks published': '- / -',
    'local request ended': '- / -',
    '40 s pass': '- / -',
    'session ends': '- / -',
  },
  'demand waiting': {
    lookup: 'lookup_resp r 1 / -',
    fetch: '- / transfer_done r#0 true',
    'fetch without keys': '- / -',
    abort_fetch: 'abort_ack r#0 / -',
    'blocks published': '- / -',
    'local request ended': 'transfer_done r#0 false / -',
    '40 s pass': 'transfer_done r#0 false / -',
    'session ends': '- / -',
  },
  'demand partly under way': {
    lookup: 'lookup_resp r 1 / -',
    fetch: '- / transfer_done r#0 true',
    'fetch without keys': '- / -',
    abort_fetch: '- / abort_ack r#0',
    'blocks published': '- / -',
    'local request ended': '- / transfer_done r#0 false',
    '40 s pass': '- / transfer_done r#0 false',
    'session ends': '- / -',
  },
  'leased blocks under way': {
    lookup: 'lookup_resp r 1 / transfer_done r#0 true',
    fetch: '- / transfer_done r#0 false',
    'fetch without keys': '- / -',
    abort_fetch: '- / abort_ack r#0',
    'blocks published': '- / transfer_done r#0 true',
    'local request ended': '- / transfer_done r#0 true',
    '40 s pass': '- / transfer_done r#0 false',
    'session ends': '- / -',
  },
  'aborted, draining': {
    lookup: 'lookup_resp r 1 / abort_ack r#0',
    fetch: '- / transfer_done r#0 false',
    'fetch without keys': '- / abort_ack r#0',
    abort_fetch: '- / abort_ack r#0',
    'blocks published': '- / abort_ack r#0',
    'local request ended': '- / abort_ack r#0',
    '40 s pass': '- / abort_ack r#0',
    'session ends': '- / -',
  },
  'finished, draining': {
    lookup: 'lookup_resp r 1 / -',
    fetch: '- / transfer_done r#0 true',
    'fetch without keys': '- / -',
    abort_fetch: '- / abort_ack r#0',
    'blocks published': '- / -',
    'local request ended': '- / -',
    '40 s pass': '- / -',
    'session ends': '- / -',
  },
  'stopped, sockets not empty': {
    lookup: 'lookup_resp r 1 / abort_ack r#0',
    fetch: '- / transfer_done r#0 false',
    'fetch without keys': '- / abort_ack r#0',
    abort_fetch: '- / abort_ack r#0',
    'blocks published': '- / abort_ack r#0',
    'local request ended': '- / abort_ack r#0',
    '40 s pass': '- / abort_ack r#0',
    'session ends': '- / -',
  },
  'failed, sockets not empty': {
    lookup: 'lookup_resp r 1 / transfer_done r#0 false',
    fetch: '- / transfer_done r#0 false',
    'fetch without keys': '- / -',
    abort_fetch: '- / abort_ack r#0',
    'blocks published': '- / transfer_done r#0 false',
    'local request ended': '- / transfer_done r#0 false',
    '40 s pass': '- / transfer_done r#0 false',
    'session ends': '- / -',
  },
  'second fetch waits for the first': {
    lookup: 'lookup_resp r 1 / transfer_done r#0 false',
    fetch: '- / transfer_done r#0 false',
    'fetch without keys': '- / -',
    abort_fetch: '- / abort_ack r#0',
    'blocks published': '- / transfer_done r#0 false',
    'local request ended': '- / transfer_done r#0 false',
    '40 s pass': '- / transfer_done r#0 false',
    'session ends': '- / -',
  },
  served: {
    lookup: 'lookup_resp r 1 / -',
    fetch: 'transfer_done r#0 false / -',
    'fetch without keys': '- / -',
    abort_fetch: 'abort_ack r#0 / -',
    'blocks published': '- / -',
    'local request ended': '- / -',
    '40 s pass': '- / -',
    'session ends': '- / -',
  },
  'round limit reached': {
    lookup: 'lookup_resp r 0 / -',
    fetch: 'transfer_done r#0 false / -',
    'fetch without keys': '- / -',
    abort_fetch: 'abort_ack r#0 / -',
    'blocks published': '- / -',
    'local request ended': '- / -',
    '40 s pass': '- / -',
    'session ends': '- / -',
  },
  ended: {
    lookup: '- / -',
    fetch: '- / -',
    'fetch without keys': '- / -',
    abort_fetch: '- / -',
    'blocks published': '- / -',
    'local request ended': '- / -',
    '40 s pass': '- / -',
    'session ends': '- / -',
  },
};

/** Of keys 1 and 9, from a peer with `speculative_fetch`. */
const IF_HELD: Record<State, string> = {
  unknown: '- / transfer_done r#0 false 10000000',
  'match under way': '- / transfer_done r#0 false 10000000',
  'lookup parked': '- / transfer_done r#0 false 10000000',
  leased: '- / transfer_done r#0 false 10000000',
  'answered with misses': '- / transfer_done r#0 false 10000000',
  'lease lapsed': '- / transfer_done r#0 false 10000000',
  'demand waiting': '- / transfer_done r#0 false 10000000',
  'demand partly under way': '- / transfer_done r#0 false 10000000',
  'leased blocks under way': '- / transfer_done r#0 false 10000000',
  'aborted, draining': '- / transfer_done r#0 false 10000000',
  'finished, draining': '- / transfer_done r#0 false 10000000',
  'stopped, sockets not empty': '- / transfer_done r#0 false 10000000',
  'failed, sockets not empty': '- / transfer_done r#0 false 10000000',
  'second fetch waits for the first': '- / transfer_done r#0 false 10000000',
  served: '- / transfer_done r#0 false 10000000',
  'round limit reached': 'transfer_done r#0 false / -',
  ended: '- / -',
};

/** Cells of a peer with `partial_fetch` that are not those of a plain one: without a lease the pool is looked at. */
const PARTIAL: Partial<Record<State, Partial<Record<Column, string>>>> = {
  'answered with misses': { fetch: '- / transfer_done r#0 true' },
  'lease lapsed': { fetch: '- / transfer_done r#0 true' },
  'demand waiting': { 'local request ended': 'transfer_done r#0 false 00000000 / -' },
  'demand partly under way': { 'local request ended': '- / transfer_done r#0 false 10000000' },
  'leased blocks under way': { fetch: '- / transfer_done r#0 true' },
  'aborted, draining': { fetch: '- / transfer_done r#0 true' },
  'stopped, sockets not empty': { fetch: '- / transfer_done r#0 true' },
  'failed, sockets not empty': { fetch: '- / transfer_done r#0 true' },
  'second fetch waits for the first': {
    lookup: 'lookup_resp r 1 / transfer_done r#0 true',
    fetch: '- / transfer_done r#0 true',
    'local request ended': '- / transfer_done r#0 true',
  },
  served: { fetch: '- / transfer_done r#0 true' },
};

/** Messages that the session never hands to this role. */
const NOT_FOR_THE_PRODUCER = MESSAGE_TYPES.filter(
  (type) => type !== 'lookup' && type !== 'fetch' && type !== 'abort_fetch',
);

describe('the producer role', () => {
  let cellCount = 0;

  for (const state of Object.keys(STATES) as State[]) {
    for (const column of COLUMNS) {
      it(`${state}: ${column} -> ${EXPECTED[state][column]}`, () => {
        expect(outcome(state, column)).toBe(EXPECTED[state][column]);
        cellCount += 1;
      });
    }
  }

  const kvpeer = { isKvpeer: true, features: ['partial_fetch', 'speculative_fetch'] } as const;
  const unnumbered = (cell: string): string => cell.replaceAll('lookup_resp r#0', 'lookup_resp r');
  for (const state of Object.keys(STATES) as State[]) {
    it(`${state}: fetch if held -> ${IF_HELD[state]}`, () => {
      expect(outcome(state, 'fetch if held', kvpeer)).toBe(IF_HELD[state]);
      cellCount += 1;
    });

    for (const column of ['lookup', 'fetch', 'local request ended', 'session ends'] as const) {
      const expected = PARTIAL[state]?.[column] ?? EXPECTED[state][column];
      it(`${state}, with partial fetches: ${column} -> ${expected}`, () => {
        expect(unnumbered(outcome(state, column, kvpeer))).toBe(expected);
        cellCount += 1;
      });
    }
  }

  it.each(NOT_FOR_THE_PRODUCER)('has no way to be told of %s, in any state', (type) => {
    const name = type.replace(/(?:^|_)(\w)/g, (_match, letter: string) => letter.toUpperCase());
    expect(`on${name}` in setUp('unknown').peer.producer).toBe(false);
    cellCount += Object.keys(STATES).length;
  });

  afterAll(() => {
    const messageCount = MESSAGES.length + NOT_FOR_THE_PRODUCER.length;
    const stateCount = Object.keys(STATES).length;
    console.log(
      `producer matrix: ${cellCount} cells (${messageCount} messages and ${EVENTS.length} events x ${stateCount} states)`,
    );
  });
});
