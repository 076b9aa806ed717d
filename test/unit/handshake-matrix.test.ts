// Every message and every event in every state of the handshake: where the session goes, what the peer hears, what is
// counted.

import { afterAll, describe, expect, it } from 'vitest';
import {
  writeAbortAck,
  writeAbortFetch,
  writeConnectAck,
  writeDisconnect,
  writeFetch,
  writeLookup,
  writeTransferDone,
} from '../../src/main/protocol/write.js';
import { emptyFetch, lookupRespFrame } from '../fixtures/consumer-harness.js';
import { KEY_BYTES, keysOf } from '../fixtures/producer-harness.js';
import type { FakeNode, ScriptedPeer } from '../fixtures/session-network.js';
import { connectFrom, FakeNetwork } from '../fixtures/session-network.js';

const NODE = '10.0.0.1:1';
const PEER = '10.0.0.2:1';

interface Setup {
  readonly network: FakeNetwork;
  readonly node: FakeNode;
  readonly peer: ScriptedPeer;
}

/** The peer is a kvpeer, run 1, and holds a connection to the node in every state. */
const CONNECT = connectFrom(PEER, { incarnation: 'run 1' });
const ACK = writeConnectAck(PEER);

const STATES = {
  stranger: () => Promise.resolve(),
  dialling: async ({ node }) => {
    await node.acquire(PEER);
  },
  'dialling, acknowledged': async ({ node, peer }) => {
    await node.acquire(PEER);
    await peer.say(ACK);
  },
  registering: async ({ node, peer }) => {
    node.shards.hold('addPeer');
    await node.acquire(PEER);
    await peer.say(CONNECT);
  },
  'registering, acknowledged': async ({ node, peer }) => {
    node.shards.hold('addPeer');
    await node.acquire(PEER);
    await peer.say(CONNECT, ACK);
  },
  acknowledging: async ({ node, peer }) => {
    await node.acquire(PEER);
    await peer.say(CONNECT);
  },
  ready: async ({ node, peer }) => {
    await node.acquire(PEER);
    await peer.say(CONNECT, ACK);
  },
  draining: async ({ node, peer }) => {
    node.put(5);
    await node.acquire(PEER);
    await peer.say(CONNECT, ACK);
    await peer.say(writeFetch('s', keysOf(5), KEY_BYTES, Int32Array.of(5), 0));
    await peer.say(writeDisconnect());
  },
  refused: async ({ peer }) => {
    await peer.say(connectFrom(PEER, { hashSeed: 'other' }));
  },
} satisfies Record<string, (setup: Setup) => Promise<void>>;

const say =
  (frame: Buffer) =>
  ({ peer }: Setup): Promise<void> =>
    peer.say(frame);

const MESSAGES = {
  connect: say(CONNECT),
  connect_ack: say(ACK),
  disconnect: say(writeDisconnect()),
  lookup: say(writeLookup('r', keysOf(1), KEY_BYTES, 0)),
  lookup_resp: say(lookupRespFrame('r', undefined, [1], '1')),
  fetch: say(writeFetch('r', keysOf(1), KEY_BYTES, Int32Array.of(1), 0)),
  'fetch without keys': say(emptyFetch('r', 0)),
  transfer_done: say(writeTransferDone('r', true, 0)),
  abort_fetch: say(writeAbortFetch('r', 0)),
  abort_ack: say(writeAbortAck('r', 0)),
} satisfies Record<string, (setup: Setup) => Promise<void>>;

const EVENTS = {
  'connect of another run': say(connectFrom(PEER, { incarnation: 'run 2' })),
  'connect that does not match': say(connectFrom(PEER, { hashSeed: 'other', incarnation: 'run 2' })),
  'protocol error': async ({ network, node }) => {
    node.sessions.onProtocolError(PEER, 'test');
    await network.settle();
  },
  'connection of the peer ends': ({ peer }) => peer.hangUp(),
  'peer dies': async ({ network, peer }) => {
    network.kill(peer);
    await network.settle();
  },
  'data plane knows the peer': async ({ network, node }) => {
    node.shards.resume('addPeer');
    await network.settle();
  },
  'data plane refuses the peer': async ({ network, node }) => {
    node.shards.failNext('addPeer', { code: 'KVPEER_WORKER_LOST' });
    node.shards.resume('addPeer');
    await network.settle();
  },
  '3 s pass': ({ network }) => network.advance(3_000),
  '30 s pass': ({ network }) => network.advance(30_000),
} satisfies Record<string, (setup: Setup) => Promise<void>>;

const COLUMNS = { ...MESSAGES, ...EVENTS };
type Column = keyof typeof COLUMNS;
type State = keyof typeof STATES;

async function cellOf(state: State, column: Column): Promise<string> {
  const network = new FakeNetwork();
  const node = network.node(NODE, { servesEnd: false });
  const peer = network.peer(PEER);
  const setup = { network, node, peer };
  await peer.dial(NODE);
  await STATES[state](setup);
  peer.heard();
  const before = new Map(node.counted);
  await COLUMNS[column](setup);
  await network.settle();
  const { draining } = node.sessions.countByPhase();
  const phase = node.sessions.find(PEER)?.phase ?? (draining > 0 ? 'draining' : 'none');
  const counted = [...node.counted]
    .filter(([name, count]) => count > (before.get(name) ?? 0) && /^(ignored|rejection)/.test(name))
    .map(([name]) => name);
  return [phase, ...[...peer.heard().map((frame) => `> ${frame}`), ...counted]].join(', ');
}

/** `phase of the live session, > what the peer hears, what is counted`; `draining`: there is none, an old one has not gone. */
const OUTCOMES: Record<State, Record<Column, string>> = {
  stranger: {
    connect: 'acknowledging, > connect, > connect_ack',
    connect_ack: 'none, ignored connect_ack',
    disconnect: 'none, ignored disconnect',
    lookup: 'none, ignored lookup',
    lookup_resp: 'none, ignored lookup_resp',
    fetch: 'none, ignored fetch',
    'fetch without keys': 'none, ignored fetch',
    transfer_done: 'none, ignored transfer_done',
    abort_fetch: 'none, ignored abort_fetch',
    abort_ack: 'none, ignored abort_ack',
    'connect of another run': 'acknowledging, > connect, > connect_ack',
    'connect that does not match': 'draining, > connect, rejection mismatch_hash_seed',
    'protocol error': 'none',
    'connection of the peer ends': 'none',
    'peer dies': 'none',
    'data plane knows the peer': 'none',
    'data plane refuses the peer': 'none',
    '3 s pass': 'none',
    '30 s pass': 'none',
  },
  dialling: {
    connect: 'acknowledging, > connect_ack',
    connect_ack: 'dialling',
    disconnect: 'none',
    lookup: 'dialling, ignored lookup',
    lookup_resp: 'dialling, ignored lookup_resp',
    fetch: 'dialling, ignored fetch',
    'fetch without keys': 'dialling, ignored fetch',
    transfer_done: 'dialling, ignored transfer_done',
    abort_fetch: 'dialling, ignored abort_fetch',
    abort_ack: 'dialling, ignored abort_ack',
    'connect of another run': 'acknowledging, > connect_ack',
    'connect that does not match': 'none, rejection mismatch_hash_seed',
    'protocol error': 'none, > disconnect',
    'connection of the peer ends': 'dialling',
    'peer dies': 'none',
    'data plane knows the peer': 'dialling',
    'data plane refuses the peer': 'dialling',
    '3 s pass': 'dialling, > connect',
    '30 s pass': 'none, > connect, > disconnect',
  },
  'dialling, acknowledged': {
    connect: 'ready, > connect_ack',
    connect_ack: 'dialling, ignored connect_ack',
    disconnect: 'none',
    lookup: 'dialling, ignored lookup',
    lookup_resp: 'dialling, ignored lookup_resp',
    fetch: 'dialling, ignored fetch',
    'fetch without keys': 'dialling, ignored fetch',
    transfer_done: 'dialling, ignored transfer_done',
    abort_fetch: 'dialling, ignored abort_fetch',
    abort_ack: 'dialling, ignored abort_ack',
    'connect of another run': 'ready, > connect_ack',
    'connect that does not match': 'none, rejection mismatch_hash_seed',
    'protocol error': 'none, > disconnect',
    'connection of the peer ends': 'dialling',
    'peer dies': 'none',
    'data plane knows the peer': 'dialling',
    'data plane refuses the peer': 'dialling',
    '3 s pass': 'dialling',
    '30 s pass': 'none, > disconnect',
  },
  registering: {
    connect: 'registering, ignored connect',
    connect_ack: 'registering',
    disconnect: 'draining',
    lookup: 'registering, ignored lookup',
    lookup_resp: 'registering, ignored lookup_resp',
    fetch: 'registering, ignored fetch',
    'fetch without keys': 'registering, ignored fetch',
    transfer_done: 'registering, ignored transfer_done',
    abort_fetch: 'registering, ignored abort_fetch',
    abort_ack: 'registering, ignored abort_ack',
    'connect of another run': 'draining, > disconnect',
    'connect that does not match': 'draining, > disconnect',
    'protocol error': 'draining, > disconnect',
    'connection of the peer ends': 'draining',
    'peer dies': 'draining',
    'data plane knows the peer': 'acknowledging, > connect_ack',
    'data plane refuses the peer': 'none, > disconnect',
    '3 s pass': 'registering',
    '30 s pass': 'draining, > disconnect',
  },
  'registering, acknowledged': {
    connect: 'registering, ignored connect',
    connect_ack: 'registering, ignored connect_ack',
    disconnect: 'draining',
    lookup: 'registering, ignored lookup',
    lookup_resp: 'registering, ignored lookup_resp',
    fetch: 'registering, ignored fetch',
    'fetch without keys': 'registering, ignored fetch',
    transfer_done: 'registering, ignored transfer_done',
    abort_fetch: 'registering, ignored abort_fetch',
    abort_ack: 'registering, ignored abort_ack',
    'connect of another run': 'draining, > disconnect',
    'connect that does not match': 'draining, > disconnect',
    'protocol error': 'draining, > disconnect',
    'connection of the peer ends': 'draining',
    'peer dies': 'draining',
    'data plane knows the peer': 'ready, > connect_ack',
    'data plane refuses the peer': 'none, > disconnect',
    '3 s pass': 'registering',
    '30 s pass': 'draining, > disconnect',
  },
  acknowledging: {
    connect: 'acknowledging, ignored connect',
    connect_ack: 'ready',
    disconnect: 'none',
    lookup: 'acknowledging',
    lookup_resp: 'acknowledging, ignored lookup_resp',
    fetch: 'acknowledging',
    'fetch without keys': 'acknowledging',
    transfer_done: 'acknowledging, ignored transfer_done',
    abort_fetch: 'acknowledging',
    abort_ack: 'acknowledging, ignored abort_ack',
    'connect of another run': 'acknowledging, > disconnect, > connect, > connect_ack',
    'connect that does not match': 'draining, > disconnect, > connect, rejection mismatch_hash_seed',
    'protocol error': 'none, > disconnect',
    'connection of the peer ends': 'none',
    'peer dies': 'none',
    'data plane knows the peer': 'acknowledging',
    'data plane refuses the peer': 'acknowledging',
    '3 s pass': 'acknowledging',
    '30 s pass': 'none, > disconnect',
  },
  ready: {
    connect: 'ready, ignored connect',
    connect_ack: 'ready, ignored connect_ack',
    disconnect: 'none',
    lookup: 'ready, > lookup_resp r (1)',
    lookup_resp: 'ready, ignored lookup_resp',
    fetch: 'ready',
    'fetch without keys': 'ready',
    transfer_done: 'ready, ignored transfer_done',
    abort_fetch: 'ready, > abort_ack r#0',
    abort_ack: 'ready, ignored abort_ack',
    'connect of another run': 'acknowledging, > disconnect, > connect, > connect_ack',
    'connect that does not match': 'draining, > disconnect, > connect, rejection mismatch_hash_seed',
    'protocol error': 'none, > disconnect',
    'connection of the peer ends': 'none',
    'peer dies': 'none',
    'data plane knows the peer': 'ready',
    'data plane refuses the peer': 'ready',
    '3 s pass': 'ready',
    '30 s pass': 'ready',
  },
  draining: {
    connect: 'draining',
    connect_ack: 'draining, ignored connect_ack',
    disconnect: 'draining, ignored disconnect',
    lookup: 'draining, ignored lookup',
    lookup_resp: 'draining, ignored lookup_resp',
    fetch: 'draining, ignored fetch',
    'fetch without keys': 'draining, ignored fetch',
    transfer_done: 'draining, ignored transfer_done',
    abort_fetch: 'draining, ignored abort_fetch',
    abort_ack: 'draining, ignored abort_ack',
    'connect of another run': 'draining',
    'connect that does not match': 'draining',
    'protocol error': 'draining',
    'connection of the peer ends': 'draining',
    'peer dies': 'draining',
    'data plane knows the peer': 'draining',
    'data plane refuses the peer': 'draining',
    '3 s pass': 'draining',
    '30 s pass': 'none',
  },
  refused: {
    connect: 'draining',
    connect_ack: 'draining, ignored connect_ack',
    disconnect: 'draining, ignored disconnect',
    lookup: 'draining, ignored lookup',
    lookup_resp: 'draining, ignored lookup_resp',
    fetch: 'draining, ignored fetch',
    'fetch without keys': 'draining, ignored fetch',
    transfer_done: 'draining, ignored transfer_done',
    abort_fetch: 'draining, ignored abort_fetch',
    abort_ack: 'draining, ignored abort_ack',
    'connect of another run': 'draining',
    'connect that does not match': 'draining',
    'protocol error': 'draining',
    'connection of the peer ends': 'draining',
    'peer dies': 'none',
    'data plane knows the peer': 'draining',
    'data plane refuses the peer': 'draining',
    '3 s pass': 'none',
    '30 s pass': 'none',
  },
};

const stateNames = Object.keys(STATES) as State[];
const columnNames = Object.keys(COLUMNS) as Column[];

describe.each(stateNames)('in state "%s"', (state) => {
  it.each(columnNames)('%s', async (column) => {
    expect(await cellOf(state, column)).toBe(OUTCOMES[state][column]);
  });
});

afterAll(() => {
  const [messages, events, states] = [MESSAGES, EVENTS, STATES].map((of) => Object.keys(of).length);
  console.log(
    `handshake matrix: ${(messages + events) * states} cells (${messages} messages and ${events} events x ${states} states)`,
  );
});
