// Every message and every event in every state of the consumer role: what the peer hears, what the callers get, what
// becomes of the slots, what is counted.

import { afterAll, describe, expect, it } from 'vitest';
import { MESSAGE_TYPES } from '../../src/main/protocol/messages.js';
import type { LoadResult, LookupResult } from '../../src/main/session/roles.js';
import type { Asked, ConsumerHarness, ConsumerHarnessOptions } from '../fixtures/consumer-harness.js';
import { ConsumerNode, hitsOf, loadedOf } from '../fixtures/consumer-harness.js';

interface Setup {
  readonly node: ConsumerNode;
  readonly peer: ConsumerHarness;
  readonly lookups: Asked<LookupResult>[];
  readonly loads: Asked<LoadResult>[];
  readonly prepared: (() => void)[];
}

/** The id is always r, the round of what is open always 0, its key always 1. */
const STATES = {
  'id unknown': () => undefined,
  'lookup open': (setup) => {
    setup.lookups.push(setup.peer.lookup('r', 1));
  },
  'lookup answered': (setup) => {
    setup.peer.lookup('r', 1);
    setup.peer.answer('r', undefined, [1], '1');
  },
  'lookup given up': (setup) => {
    setup.peer.lookup('r', 1);
    setup.peer.consumer.giveUpRound('r');
  },
  'load reserving': (setup) => {
    setup.node.shards.hold('reserve');
    setup.loads.push(setup.peer.load('r', 1));
  },
  'load preparing': (setup) => {
    setup.loads.push(
      setup.peer.startLoad('r', [1], { beforeFetch: (_set, proceed) => setup.prepared.push(proceed) }),
    );
    setup.node.shards.settle();
  },
  'fetch not acknowledged': (setup) => {
    setup.peer.isAcknowledged = false;
    setup.loads.push(setup.peer.load('r', 1));
  },
  fetching: (setup) => {
    setup.loads.push(setup.peer.load('r', 1));
  },
  draining: (setup) => {
    setup.peer.load('r', 1);
    setup.peer.finish('r');
  },
  publishing: (setup) => {
    setup.loads.push(setup.peer.load('r', 1));
    setup.node.shards.hold('publish');
    setup.peer.done('r', 0);
  },
  joined: (setup) => {
    setup.node.reserve(1);
    setup.loads.push(setup.peer.load('r', 1));
  },
  loaded: (setup) => {
    setup.peer.load('r', 1);
    setup.peer.done('r', 0);
  },
  quarantined: (setup) => {
    setup.peer.load('r', 1);
    setup.peer.finish('r');
    setup.node.advance(10_000);
  },
  'session over': (setup) => {
    setup.peer.load('r', 1);
    setup.peer.end();
  },
} satisfies Record<string, (setup: Setup) => void>;

/** The messages that the session hands to this role; see NOT_FOR_THE_CONSUMER. */
const MESSAGES = {
  lookup_resp: ({ peer }) => {
    peer.answer('r', undefined, [1], '1');
  },
  transfer_done: ({ peer }) => {
    peer.done('r', 0, true);
  },
  'transfer_done (failed)': ({ peer }) => {
    peer.done('r', 0, false);
  },
  abort_ack: ({ peer }) => {
    peer.abortAck('r', 0);
  },
} satisfies Record<string, (setup: Setup) => void>;

const EVENTS = {
  'another lookup': (setup) => {
    setup.lookups.push(setup.peer.lookup('r', 2));
  },
  'another load': (setup) => {
    setup.loads.push(setup.peer.load('r', 3));
  },
  'round given up': ({ peer }) => {
    peer.consumer.giveUpRound('r');
  },
  'request finished': ({ peer }) => {
    peer.finish('r');
  },
  '8 s pass': ({ node }) => {
    node.advance(8_000);
  },
  '31 s pass': ({ node }) => {
    node.advance(31_000);
  },
  'session ends': ({ peer }) => {
    peer.end();
  },
} satisfies Record<string, (setup: Setup) => void>;

const COLUMNS = { ...MESSAGES, ...EVENTS };
type Column = keyof typeof COLUMNS;
type State = keyof typeof STATES;

function cellOf(state: State, event: (setup: Setup) => void, options: ConsumerHarnessOptions = {}): string {
  const node = new ConsumerNode();
  const setup: Setup = { node, peer: node.session(options), lookups: [], loads: [], prepared: [] };
  const { peer } = setup;
  const run: (setup: Setup) => void = STATES[state];
  run(setup);
  node.shards.settle();
  peer.sent();
  const before = new Map(peer.counted);
  const phase = node.shards.phaseOf(0);
  event(setup);
  node.shards.settle();
  const counted = [...peer.counted]
    .filter(([name, count]) => count > (before.get(name) ?? 0) && /^(ignored|rejection|miss)/.test(name))
    .map(([name]) => name);
  const phaseNow = node.shards.phaseOf(0);
  return [
    ...[...peer.sent(), ...peer.queued.map(() => 'a frame waits')].map((frame) => `> ${frame}`),
    ...setup.lookups.flatMap(({ results }) => results.map((result) => `lookup ${hitsOf(result)}`)),
    ...setup.loads.flatMap(({ results }) => results.map((result) => `load ${loadedOf(result)}`)),
    ...(phaseNow === phase ? [] : [`slot ${phaseNow}`]),
    ...counted,
  ].join(', ');
}

/** Empty: nothing at all. The slot is that of key 1, or the first one that is taken. */
const OUTCOMES: Record<State, Record<Column, string>> = {
  'id unknown': {
    lookup_resp: 'ignored lookup_resp',
    transfer_done: 'ignored transfer_done',
    'transfer_done (failed)': 'ignored transfer_done',
    abort_ack: 'ignored abort_ack',
    'another lookup': '> lookup r#0 (1)',
    'another load': '> fetch r#0 (1), slot writing',
    'round given up': '',
    'request finished': '',
    '8 s pass': '',
    '31 s pass': '',
    'session ends': '',
  },
  'lookup open': {
    lookup_resp: 'lookup 1',
    transfer_done: 'ignored transfer_done',
    'transfer_done (failed)': 'ignored transfer_done',
    abort_ack: 'ignored abort_ack',
    'another lookup': '> lookup r#0 (1)',
    'another load': '> fetch r#0 (1), > lookup r#1 (1), slot writing',
    'round given up': '> abort_fetch r#0, lookup 0, miss cancelled',
    'request finished': '> fetch r#0 (0), lookup 0, miss cancelled',
    '8 s pass': '> abort_fetch r#0, lookup 0, miss lookup-deadline',
    '31 s pass': '> abort_fetch r#0, lookup 0, miss lookup-deadline',
    'session ends': 'lookup 0, miss peer-down',
  },
  'lookup answered': {
    lookup_resp: 'ignored lookup_resp',
    transfer_done: 'ignored transfer_done',
    'transfer_done (failed)': 'ignored transfer_done',
    abort_ack: 'ignored abort_ack',
    'another lookup': '> lookup r#0 (1)',
    'another load': '> fetch r#0 (1), slot writing',
    'round given up': '> abort_fetch r#0',
    'request finished': '> fetch r#0 (0)',
    '8 s pass': '',
    '31 s pass': '',
    'session ends': '',
  },
  'lookup given up': {
    lookup_resp: '',
    transfer_done: 'ignored transfer_done',
    'transfer_done (failed)': 'ignored transfer_done',
    abort_ack: 'ignored abort_ack',
    'another lookup': '> lookup r#1 (1)',
    'another load': '> fetch r#1 (1), slot writing',
    'round given up': '',
    'request finished': '',
    '8 s pass': '',
    '31 s pass': '',
    'session ends': '',
  },
  'load reserving': {
    lookup_resp: 'ignored lookup_resp',
    transfer_done: 'ignored transfer_done',
    'transfer_done (failed)': 'ignored transfer_done',
    abort_ack: 'ignored abort_ack',
    'another lookup': '> lookup r#0 (1)',
    'another load': '',
    'round given up': '',
    'request finished': 'load 0',
    '8 s pass': '',
    '31 s pass': 'load 0, miss load-deadline',
    'session ends': 'load 0',
  },
  'load preparing': {
    lookup_resp: 'ignored lookup_resp',
    transfer_done: 'ignored transfer_done',
    'transfer_done (failed)': 'ignored transfer_done',
    abort_ack: 'ignored abort_ack',
    'another lookup': '> lookup r#0 (1)',
    'another load': '> fetch r#0 (1)',
    'round given up': '',
    'request finished': 'load 0',
    '8 s pass': '',
    '31 s pass': 'load 0, miss load-deadline',
    'session ends': 'load 0',
  },
  'fetch not acknowledged': {
    lookup_resp: '> a frame waits, ignored lookup_resp',
    transfer_done: '> a frame waits, ignored transfer_done',
    'transfer_done (failed)': '> a frame waits, ignored transfer_done',
    abort_ack: '> a frame waits, ignored abort_ack',
    'another lookup': '> a frame waits, > a frame waits',
    'another load': '> a frame waits, > a frame waits',
    'round given up': '> a frame waits',
    'request finished': 'load 0, slot free',
    '8 s pass': '> a frame waits',
    '31 s pass': 'load 0, slot free, miss load-deadline',
    'session ends': 'load 0, slot free, miss peer-down',
  },
  fetching: {
    lookup_resp: 'ignored lookup_resp',
    transfer_done: 'load 1, slot ready',
    'transfer_done (failed)': 'load 0, slot free, miss load-failed',
    abort_ack: 'load 0, slot free, miss load-failed',
    'another lookup': '> lookup r#1 (1)',
    'another load': '> fetch r#1 (1)',
    'round given up': '',
    'request finished': '> abort_fetch r#0, load 0',
    '8 s pass': '',
    '31 s pass': '> abort_fetch r#0, load 0, miss load-deadline',
    'session ends': 'load 0, slot quarantined, miss peer-down',
  },
  draining: {
    lookup_resp: 'ignored lookup_resp',
    transfer_done: 'slot ready',
    'transfer_done (failed)': 'slot free',
    abort_ack: 'slot free',
    'another lookup': '> lookup r#1 (1)',
    'another load': '> fetch r#1 (1)',
    'round given up': '',
    'request finished': '',
    '8 s pass': '',
    '31 s pass': 'slot quarantined',
    'session ends': 'slot quarantined',
  },
  publishing: {
    lookup_resp: 'ignored lookup_resp',
    transfer_done: 'ignored transfer_done',
    'transfer_done (failed)': 'ignored transfer_done',
    abort_ack: 'ignored abort_ack',
    'another lookup': '> lookup r#1 (1)',
    'another load': '> fetch r#1 (1)',
    'round given up': '',
    'request finished': 'load 0',
    '8 s pass': '',
    '31 s pass': '',
    'session ends': '',
  },
  joined: {
    lookup_resp: 'ignored lookup_resp',
    transfer_done: 'ignored transfer_done',
    'transfer_done (failed)': 'ignored transfer_done',
    abort_ack: 'ignored abort_ack',
    'another lookup': '> lookup r#0 (1)',
    'another load': '> fetch r#0 (1)',
    'round given up': '',
    'request finished': 'load 0',
    '8 s pass': '',
    '31 s pass': 'load 0, miss joined-failed',
    'session ends': '',
  },
  loaded: {
    lookup_resp: 'ignored lookup_resp',
    transfer_done: 'ignored transfer_done',
    'transfer_done (failed)': 'ignored transfer_done',
    abort_ack: 'ignored abort_ack',
    'another lookup': '> lookup r#1 (1)',
    'another load': '> fetch r#1 (1)',
    'round given up': '',
    'request finished': '',
    '8 s pass': '',
    '31 s pass': '',
    'session ends': '',
  },
  quarantined: {
    lookup_resp: 'ignored lookup_resp',
    transfer_done: 'slot free',
    'transfer_done (failed)': 'slot free',
    abort_ack: 'slot free',
    'another lookup': '> lookup r#1 (1)',
    'another load': '> fetch r#1 (1)',
    'round given up': '',
    'request finished': '',
    '8 s pass': '',
    '31 s pass': '',
    'session ends': '',
  },
  'session over': {
    lookup_resp: 'ignored lookup_resp',
    transfer_done: 'slot free',
    'transfer_done (failed)': 'slot free',
    abort_ack: 'slot free',
    'another lookup': 'lookup 0, miss peer-down',
    'another load': 'load 0, miss peer-down',
    'round given up': '',
    'request finished': '',
    '8 s pass': '',
    '31 s pass': '',
    'session ends': '',
  },
};

/** Messages that the session never hands to this role: see handshake-matrix.test.ts and producer-matrix.test.ts. */
const NOT_FOR_THE_CONSUMER = MESSAGE_TYPES.filter((type) => !(type in MESSAGES));

const stateNames = Object.keys(STATES) as State[];
const columnNames = Object.keys(COLUMNS) as Column[];

describe.each(stateNames)('in state "%s"', (state) => {
  it.each(columnNames)('%s', (column) => {
    expect(cellOf(state, COLUMNS[column])).toBe(OUTCOMES[state][column]);
  });
});

/** A transfer that says which blocks were written is one that says true for those and false for the others. */
describe.each(stateNames)('with partial fetches, in state "%s"', (state) => {
  const options = { features: ['partial_fetch'] } as const;

  it('a transfer_done (failed, all written)', () => {
    const cell = cellOf(
      state,
      ({ peer }) => {
        peer.donePartly('r', 0, '1');
      },
      options,
    );
    expect(cell).toBe(OUTCOMES[state].transfer_done);
  });

  it('a transfer_done (failed, none written)', () => {
    const cell = cellOf(
      state,
      ({ peer }) => {
        peer.donePartly('r', 0, '0');
      },
      options,
    );
    expect(cell).toBe(OUTCOMES[state]['transfer_done (failed)'].replace('load-failed', 'not-held'));
  });
});

it('the other messages never reach the role', () => {
  expect(NOT_FOR_THE_CONSUMER).toEqual([
    'connect',
    'connect_ack',
    'disconnect',
    'lookup',
    'fetch',
    'abort_fetch',
  ]);
});

afterAll(() => {
  const [messages, events, states] = [MESSAGES, EVENTS, STATES].map((of) => Object.keys(of).length);
  console.log(
    `consumer matrix: ${(messages + events) * states} cells (${messages} messages and ${events} events x ${states} states)`,
  );
});
