// What the replay's parent and its peer processes say to each other over Node's IPC channel.

/** What a peer process needs to start its peer. */
export interface StartArguments {
  readonly blockBytes: number;
  readonly poolBytes: number;
  readonly shards: number;
  readonly dataPlane: 'nixl' | 'none';
}

/** Where a started peer is and what it runs on. */
export interface StartedPeer {
  readonly pid: number;
  readonly host: string;
  readonly port: number;
  readonly shards: number;
  readonly dataPlane: {
    readonly name: 'nixl' | 'none';
    readonly version: string;
    /** The lanes of the data plane, as the library names them. */
    readonly transports: string;
  };
}

/** The peer to name in `remote_kv_source`, and the leading blocks it held when the request was dispatched. */
export interface RequestSource {
  readonly host: string;
  readonly port: number;
  readonly prefixBlocks: number;
}

export interface RunArguments {
  readonly ids: readonly number[];
  /** null when no other peer holds the first block. */
  readonly source: RequestSource | null;
}

/** What one request found and did. referenced = local + pulled + computed. */
export interface RequestOutcome {
  readonly referenced: number;
  readonly local: number;
  readonly pulled: number;
  readonly computed: number;
  /** Computed blocks that found no slot. */
  readonly notStored: number;
  readonly verified: number;
  readonly mismatches: number;
  readonly bytesPulled: number;
  /** null when the request made no lookup. */
  readonly lookup: { readonly keys: number; readonly micros: number } | null;
  /** null when the request made no load. */
  readonly load: { readonly blocks: number; readonly micros: number } | null;
  /** One code for each part of the request that ended with an error. */
  readonly failures: readonly string[];
}

/** A peer's own figures, taken when nothing runs any more. */
export interface PeerFigures {
  readonly bytesServed: number;
  readonly served: { readonly posts: number; readonly cut: number; readonly failed: number };
  readonly pinsAtEnd: number;
  readonly quarantinedAtEnd: number;
  readonly evictions: number;
  readonly eventLoopP99Ms: number;
}

/** Every call that the parent makes, with its argument and its answer. */
export interface PeerCalls {
  readonly start: { readonly argument: StartArguments; readonly answer: StartedPeer };
  /** How many leading blocks of these ids the peer holds. */
  readonly prefix: { readonly argument: readonly number[]; readonly answer: number };
  readonly run: { readonly argument: RunArguments; readonly answer: RequestOutcome };
  readonly figures: { readonly argument: null; readonly answer: PeerFigures };
  readonly close: { readonly argument: null; readonly answer: null };
}

export type PeerCallName = keyof PeerCalls;

/** Parent to child. */
export type CallMessage = {
  [Name in PeerCallName]: {
    readonly call: number;
    readonly name: Name;
    readonly argument: PeerCalls[Name]['argument'];
  };
}[PeerCallName];

/** Child to parent: the answer to one call, or the error that it ended with. */
export type AnswerMessage =
  | { readonly call: number; readonly answer: PeerCalls[PeerCallName]['answer'] }
  | { readonly call: number; readonly error: { readonly code: string; readonly message: string } };
