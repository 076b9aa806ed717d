// The parts of kv_transfer_params after parsing, and the table of what can be wrong with them.

import type { HashFilter } from './hash-filter.js';

/** Where a peer's control socket is reached. `host` is a name or an IP address, IPv6 without brackets. */
export interface PeerAddress {
  readonly host: string;
  readonly port: number;
}

/** On a prefill request: keep the computed blocks until the remote decoder has pulled them. */
export interface RemoteDecoder {
  readonly kvRequestId: string;
}

/** On a decode request: pull every block from that prefiller, without a lookup. */
export interface RemotePrefiller extends PeerAddress {
  readonly kvRequestId: string;
  /** What `?transport=` of a `remote_url` asked for; no part of the canonical form. */
  readonly transport: string | undefined;
}

/** On any request: look up there, then pull what it holds. */
export interface RemoteKvSource extends PeerAddress {
  /** Undefined until the consumer allocates one, see `allocateIds`. */
  readonly kvRequestId: string | undefined;
  readonly transport: string | undefined;
  /** Only keys that pass are asked for there; absent: all. No part of the canonical form. */
  readonly filter?: HashFilter;
}

export type ParamsCombination =
  'none' | 'remote_decoder' | 'remote_prefiller' | 'remote_kv_source' | 'remote_decoder+remote_kv_source';

/** Legal kv_transfer_params. Which of the three roles are set is said by `combination`. */
export interface KvTransferParams {
  readonly combination: ParamsCombination;
  readonly remoteDecoder: RemoteDecoder | undefined;
  readonly remotePrefiller: RemotePrefiller | undefined;
  /** 1 to 8 sources in order of preference, or undefined. */
  readonly remoteKvSource: readonly RemoteKvSource[] | undefined;
  /** True when `kv_load_tiers` is an empty list: nothing may be pulled for this request. */
  readonly isPullOff: boolean;
  /** Every other top-level key as it came, for the engine's other connectors. */
  readonly passThrough: Readonly<Record<string, unknown>>;
}

/** Sources in one `remote_kv_source` list. */
export const MAX_SOURCES = 8;
/** Bytes of UTF-8 in an id: the wire's limit for strings (design section 6, rule 5). */
export const MAX_ID_BYTES = 512;

/** What can be wrong, by a stable code. The numbers are the rules of the llm-d contract, section 3.3. */
export const PARAMS_ISSUES = {
  NOT_AN_OBJECT: 'kv_transfer_params, or a part of it, is not an object (rule 1)',
  COMBINATION: 'these keys may not stand together (rule 2)',
  RETIRED_KEY: 'the key was renamed and has no effect any more (rule 3)',
  OTHER_CONNECTOR: 'the key belongs to another connector (rule 3)',
  ID_MISSING: 'kv_request_id is missing (rule 4)',
  ID_INVALID: 'kv_request_id is not a printable string of 1 to 512 bytes (rule 4)',
  HOST_INVALID: 'remote_host is not a host (rule 5)',
  PORT_INVALID: 'remote_port is not a port (rule 5)',
  ADDRESS_MISSING: 'no address is given (rule 5)',
  URL_INVALID: 'remote_url is not p2p://host:port (rule 5)',
  ADDRESS_CONFLICT: 'remote_url and remote_host or remote_port name different addresses (rule 5)',
  DECODER_ADDRESS: 'remote_decoder carries an address (rule 6)',
  IDS_EQUAL: 'the two ids of the pair are equal (rule 7)',
  SOURCE_IS_SELF: 'the source is the computing endpoint itself (rule 7)',
  SOURCE_COUNT: 'remote_kv_source is a list of no or too many sources',
  SOURCE_REPEATED: 'remote_kv_source names one address twice',
  LEGS_DIFFER: 'the two legs do not belong together (rule 8)',
  ID_REUSED: 'kv_request_id was used before (rule 8)',
  UNKNOWN_KEY: 'the key is unknown and is ignored (rule 9)',
  VALUE_IGNORED: 'the value has no effect (rule 9)',
} as const;

export type ParamsIssueCode = keyof typeof PARAMS_ISSUES;

/** One finding, as data: an HTTP layer, a command line and a program each show it their way. */
export interface ParamsIssue {
  readonly severity: 'error' | 'warning';
  readonly code: ParamsIssueCode;
  /** Where, from the root: `kv_transfer_params.remote_kv_source[1].remote_port`. */
  readonly path: string;
  /** What is wrong, with the value when it is short. */
  readonly message: string;
  /** What to do about it. */
  readonly remedy: string;
}

export type ParamsResult =
  | { readonly ok: true; readonly params: KvTransferParams; readonly warnings: readonly ParamsIssue[] }
  | {
      readonly ok: false;
      readonly errors: readonly ParamsIssue[];
      readonly warnings: readonly ParamsIssue[];
    };

export interface ParseParamsOptions {
  /** Unknown keys, keys of other connectors and a missing id in a source are errors. Default false. */
  readonly strict?: boolean;
  /** `multi` when NIXL's own connector runs beside this one: its flat keys are then expected. Default `offloading`. */
  readonly connector?: 'offloading' | 'multi';
  /** Addresses of the node that computes the request: a source that equals one of them is an error. */
  readonly self?: readonly PeerAddress[] | undefined;
}

/** One line for people: where, what, remedy. */
export function formatIssue(issue: ParamsIssue): string {
  return `${issue.path}: ${issue.message}; ${issue.remedy}`;
}
