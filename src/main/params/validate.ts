// The rules over several parts of kv_transfer_params, over both legs of a request, and over time.

import { formatHostPort, isSameAddress } from './address.js';
import type {
  KvTransferParams,
  ParamsCombination,
  ParamsIssue,
  ParamsIssueCode,
  PeerAddress,
} from './types.js';

type Report = (code: ParamsIssueCode, path: string, message: string, remedy: string) => void;

/**
 * The five legal combinations (rule 2). vLLM itself rejects none of the others: it acts on some of the keys and
 * passes over the rest, so this is the only gate.
 */
const LEGAL = new Map<string, ParamsCombination>([
  ['', 'none'],
  ['remote_decoder', 'remote_decoder'],
  ['remote_prefiller', 'remote_prefiller'],
  ['remote_kv_source', 'remote_kv_source'],
  ['remote_decoder+remote_kv_source', 'remote_decoder+remote_kv_source'],
]);

/** @param present the role keys that are there, in the order decoder, prefiller, source */
export function combinationOf(present: readonly string[], root: string, report: Report): ParamsCombination {
  const legal = LEGAL.get(present.join('+'));
  if (legal !== undefined) return legal;
  const remedy =
    'keep remote_prefiller alone (a decode request), or remote_decoder with or without remote_kv_source (a prefill request)';
  report('COMBINATION', root, `${present.join(' and ')} may not stand together`, remedy);
  return 'none';
}

/** Rule 7: the ids of the pair differ, and nobody pulls from itself. */
export function checkTogether(
  params: KvTransferParams,
  self: readonly PeerAddress[],
  root: string,
  report: Report,
): void {
  const sources = params.remoteKvSource ?? [];
  const path = `${root}.remote_kv_source`;
  for (const [index, source] of sources.entries()) {
    const at = sources.length === 1 ? path : `${path}[${index}]`;
    if (source.kvRequestId !== undefined && source.kvRequestId === params.remoteDecoder?.kvRequestId) {
      const remedy = 'give the source an id of its own';
      report('IDS_EQUAL', `${at}.kv_request_id`, 'equals the kv_request_id of remote_decoder', remedy);
    }
    if (self.some((address) => isSameAddress(address, source))) {
      const message = `${formatHostPort(source)} is the node that computes this request`;
      report('SOURCE_IS_SELF', at, message, 'leave this source out');
    }
  }
}

/**
 * Rule 8 over the two legs of one prefill/decode request: the decode leg pulls under the id that the prefill leg
 * stores under.
 */
export function validateLegs(prefill: KvTransferParams, decode: KvTransferParams): readonly ParamsIssue[] {
  const issues: ParamsIssue[] = [];
  const report: Report = (code, path, message, remedy) => {
    issues.push({ severity: 'error', code, path, message, remedy });
  };
  const stored = prefill.remoteDecoder?.kvRequestId;
  const pulled = decode.remotePrefiller?.kvRequestId;
  if (stored === undefined) {
    const remedy = 'give the prefill leg a remote_decoder';
    report('LEGS_DIFFER', 'prefill.kv_transfer_params', 'has no remote_decoder', remedy);
  }
  if (pulled === undefined) {
    const remedy = 'give the decode leg a remote_prefiller';
    report('LEGS_DIFFER', 'decode.kv_transfer_params', 'has no remote_prefiller', remedy);
  }
  if (stored !== undefined && pulled !== undefined && stored !== pulled) {
    const path = 'decode.kv_transfer_params.remote_prefiller.kv_request_id';
    const message = 'differs from the kv_request_id of remote_decoder on the prefill leg';
    report('LEGS_DIFFER', path, message, 'give both legs the same id');
  }
  return issues;
}

/**
 * Rule 8 over time: parked stores are keyed by the id, so an id that comes again could be given the blocks of
 * another request. Bounded: the oldest id is forgotten first.
 */
export class UsedIds {
  readonly #usedAt = new Map<string, number>();
  readonly #rememberMs: number;
  readonly #capacity: number;

  /**
   * @param rememberMs how long an id stays used; at least as long as a peer keeps blocks for it
   * @param capacity ids kept at most
   */
  constructor(rememberMs: number, capacity: number) {
    this.#rememberMs = rememberMs;
    this.#capacity = capacity;
  }

  /** Marks an id as used. @returns false when it already was */
  use(id: string, nowMs: number): boolean {
    // Insertion order is age order, so the expired ones stand in front.
    for (const [oldId, usedAtMs] of this.#usedAt) {
      if (nowMs - usedAtMs < this.#rememberMs) break;
      this.#usedAt.delete(oldId);
    }
    if (this.#usedAt.has(id)) return false;
    if (this.#usedAt.size >= this.#capacity) {
      for (const oldest of this.#usedAt.keys()) {
        this.#usedAt.delete(oldest);
        break;
      }
    }
    this.#usedAt.set(id, nowMs);
    return true;
  }

  get size(): number {
    return this.#usedAt.size;
  }
}
