// How a session comes up: a pure state machine of connect, registration and acknowledgement, both directions at once.
//
//              connect comes, valid          data plane knows the peer          its ack comes
//   dialling -------------------> registering -------------------> acknowledging -------------> ready
//      |  \______________ its ack may come at any of these points and is remembered ______________/
//      |        |                       |                                |
//      +--------+--- deadline, refusal, mismatch, failed registration, disconnect ----> over
//
// Our own `connect` goes out at once in `dialling`; the peer's ack lets us send requests, our ack lets it.
// Every event in every state has a row in test/unit/handshake.test.ts.

import type { ConnectMessage } from '../protocol/messages.js';

/** What this node requires of every peer, and tells every peer. */
export interface LocalIdentity {
  readonly blockBytes: number;
  /** Empty: no opinion. */
  readonly fingerprint: string;
  readonly hashSeed: string;
}

/** A `connect` that cannot be accepted: which field, and both values. */
export interface Mismatch {
  readonly field: 'block_len' | 'config_fingerprint' | 'hash_seed';
  readonly ours: string;
  readonly theirs: string;
}

/** Compares a valid `connect` with what this node requires. Fingerprints differ only when both have an opinion. */
export function findMismatch(own: LocalIdentity, connect: ConnectMessage): Mismatch | undefined {
  if (connect.blockLen !== own.blockBytes) {
    return { field: 'block_len', ours: String(own.blockBytes), theirs: String(connect.blockLen) };
  }
  if (
    own.fingerprint !== '' &&
    connect.configFingerprint !== '' &&
    own.fingerprint !== connect.configFingerprint
  ) {
    return { field: 'config_fingerprint', ours: own.fingerprint, theirs: connect.configFingerprint };
  }
  if (connect.hashSeed !== own.hashSeed) {
    return { field: 'hash_seed', ours: own.hashSeed, theirs: connect.hashSeed };
  }
  return undefined;
}

/** Two `connect` messages of one run of one peer: same metadata, same incarnation. */
export function isSameRun(a: ConnectMessage, b: ConnectMessage): boolean {
  return (
    a.kvpeer?.incarnation.id === b.kvpeer?.incarnation.id &&
    a.baseAddr === b.baseAddr &&
    a.numBlocks === b.numBlocks &&
    a.agentMetadata.equals(b.agentMetadata)
  );
}

/** Why a session ended; also the value of the log field `cause` and the label of the counter. */
export type EndCause =
  | 'closed'
  | 'peer-disconnected'
  | 'connection-lost'
  | 'refused'
  | 'handshake-timeout'
  | 'mismatch'
  | 'registration-failed'
  | 'protocol-error'
  | 'send-failed'
  | 'restarted'
  | 'recycling'
  | 'idle';

/** Causes that count against the peer: it is left alone for a while (design.md section 7, back-off). */
export const FAULTY_CAUSES: ReadonlySet<EndCause> = new Set<EndCause>([
  'connection-lost',
  'refused',
  'handshake-timeout',
  'mismatch',
  'registration-failed',
  'protocol-error',
  'send-failed',
]);

export type HandshakeState =
  | { readonly phase: 'dialling'; readonly isAcked: boolean; readonly isRedialled: boolean }
  | { readonly phase: 'registering'; readonly isAcked: boolean; readonly connect: ConnectMessage }
  | { readonly phase: 'acknowledging'; readonly connect: ConnectMessage }
  | { readonly phase: 'ready'; readonly connect: ConnectMessage }
  | { readonly phase: 'over'; readonly cause: EndCause };

export type HandshakeEvent =
  | { readonly type: 'connect'; readonly message: ConnectMessage; readonly mismatch: Mismatch | undefined }
  | { readonly type: 'connect_ack' }
  | { readonly type: 'registered' }
  | { readonly type: 'registration-failed' }
  | { readonly type: 'redial-time' }
  | { readonly type: 'deadline' }
  | { readonly type: 'end'; readonly cause: EndCause };

export type HandshakeEffect =
  | { readonly type: 'register'; readonly connect: ConnectMessage }
  | { readonly type: 'send-ack' }
  /** Close the DEALER, open it again, send `connect` again: a vLLM ROUTER does not read a second connection of an identity. */
  | { readonly type: 'redial' }
  /** The peer has registered us: queued frames may go. */
  | { readonly type: 'flush' }
  | { readonly type: 'ready' }
  | { readonly type: 'reject'; readonly mismatch: Mismatch }
  /** Said before: nothing changes. */
  | { readonly type: 'ignore'; readonly messageType: 'connect' | 'connect_ack' }
  /** Another run of the peer at this address: this session ends, and one for the message begins. */
  | { readonly type: 'replace'; readonly connect: ConnectMessage }
  | { readonly type: 'end'; readonly cause: EndCause };

export interface HandshakeStep {
  readonly state: HandshakeState;
  readonly effects: readonly HandshakeEffect[];
}

export const HANDSHAKE_START: HandshakeState = { phase: 'dialling', isAcked: false, isRedialled: false };

/** The transition table. An event that means nothing in a state leaves it as it is. */
export function handshakeStep(state: HandshakeState, event: HandshakeEvent): HandshakeStep {
  if (state.phase === 'over') return { state, effects: [] };
  switch (event.type) {
    case 'end':
      return over(event.cause);
    case 'deadline':
      return state.phase === 'ready' ? { state, effects: [] } : over('handshake-timeout');
    case 'connect':
      return onConnect(state, event.message, event.mismatch);
    case 'connect_ack':
      return onAck(state);
    case 'registered':
      if (state.phase !== 'registering') return { state, effects: [] };
      return state.isAcked
        ? {
            state: { phase: 'ready', connect: state.connect },
            effects: [{ type: 'send-ack' }, { type: 'ready' }],
          }
        : { state: { phase: 'acknowledging', connect: state.connect }, effects: [{ type: 'send-ack' }] };
    case 'registration-failed':
      return state.phase === 'registering' ? over('registration-failed') : { state, effects: [] };
    case 'redial-time':
      // A peer that acknowledged us has our `connect`, and a second one would end its session.
      if (state.phase !== 'dialling' || state.isRedialled || state.isAcked) return { state, effects: [] };
      return { state: { ...state, isRedialled: true }, effects: [{ type: 'redial' }] };
  }
}

function onConnect(
  state: Exclude<HandshakeState, { phase: 'over' }>,
  message: ConnectMessage,
  mismatch: Mismatch | undefined,
): HandshakeStep {
  if (state.phase === 'dialling') {
    if (mismatch) {
      return {
        state: { phase: 'over', cause: 'mismatch' },
        effects: [
          { type: 'reject', mismatch },
          { type: 'end', cause: 'mismatch' },
        ],
      };
    }
    return {
      state: { phase: 'registering', isAcked: state.isAcked, connect: message },
      effects: [{ type: 'register', connect: message }],
    };
  }
  if (isSameRun(state.connect, message))
    return { state, effects: [{ type: 'ignore', messageType: 'connect' }] };
  return {
    state: { phase: 'over', cause: 'restarted' },
    effects: [
      { type: 'end', cause: 'restarted' },
      { type: 'replace', connect: message },
    ],
  };
}

function onAck(state: Exclude<HandshakeState, { phase: 'over' }>): HandshakeStep {
  switch (state.phase) {
    case 'dialling':
    case 'registering':
      return state.isAcked
        ? { state, effects: [{ type: 'ignore', messageType: 'connect_ack' }] }
        : { state: { ...state, isAcked: true }, effects: [{ type: 'flush' }] };
    case 'acknowledging':
      return {
        state: { phase: 'ready', connect: state.connect },
        effects: [{ type: 'flush' }, { type: 'ready' }],
      };
    case 'ready':
      return { state, effects: [{ type: 'ignore', messageType: 'connect_ack' }] };
  }
}

function over(cause: EndCause): HandshakeStep {
  return { state: { phase: 'over', cause }, effects: [{ type: 'end', cause }] };
}
