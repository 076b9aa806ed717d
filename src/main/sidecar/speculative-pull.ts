// Pulls a prompt's blocks into the embedded peer while the request is still on its way to the engine.

import { setImmediate as nextTurn } from 'node:timers/promises';

import type { Logger } from 'pino';
import { Counter, type Registry } from 'prom-client';

import { KvpeerError } from '../errors.js';
import { BlockHasher, type BlockHashAlgorithm } from '../hashes/index.js';
import type { PeerApi, PeerRequest } from '../peer-api.js';

/** The peer, as far as a pull needs it. */
export type PullingPeer = Pick<PeerApi, 'open' | 'describe' | 'blockBytes' | 'keyBytes'>;

/** What was decided for a request (hooks.ts), as far as a pull needs it. */
export interface PullDecision {
  readonly kind: 'decode' | 'pull';
  readonly params: Readonly<Record<string, unknown>>;
  tokenIds(): Uint32Array | undefined;
  readonly signal: AbortSignal;
}

export interface SpeculativePullOptions {
  /** Tokens of one hash: the engine's block size. */
  readonly tokensPerHash: number;
  /** Hashes of one block of the peer. Default: 1. */
  readonly hashesPerChunk?: number | undefined;
  /** The engines' hash seed. Default: as vLLM. */
  readonly hashSeed?: string | undefined;
  /** A pull that takes longer is given up. */
  readonly maxMs: number;
  /** A prompt's leading blocks are pulled up to this many bytes. */
  readonly maxBytes: number;
  /** Pulls at the same time; further requests go without. */
  readonly maxRunning: number;
}

export interface SpeculativePullParts {
  readonly log: Logger;
  /** Where its metrics are registered. */
  readonly registry: Registry;
}

/** How a pull ended. */
export type PullOutcome =
  | 'pulled'
  /** The source has nothing that is not here. */
  | 'nothing'
  /** The prompt has no full block. */
  | 'short'
  /** Too many pulls were running. */
  | 'busy'
  /** The request ended first. */
  | 'cancelled'
  | 'late'
  | 'failed';

/** Hashed between two turns of the event loop: about 0.3 ms. */
const BLOCKS_PER_TURN = 128;
const GROUP_BYTES = 4;

/** By the length of the node's keys: a hash and its group. */
const ALGORITHM_OF_KEY_BYTES: ReadonlyMap<number, BlockHashAlgorithm> = new Map([
  [36, 'sha256_cbor'],
  [20, 'xxhash_cbor'],
]);

/**
 * A pull is a guess: it has an id of its own, so it cannot disturb what the engine does under the request's id, and
 * whatever becomes of it, the request goes on. What it brought is in the pool like any other block.
 */
export class SpeculativePulls {
  readonly #peer: PullingPeer;
  readonly #hasher: BlockHasher;
  readonly #options: SpeculativePullOptions;
  readonly #log: Logger;
  readonly #outcomes: Counter;
  readonly #blocks: Counter;
  readonly #running = new Set<Promise<PullOutcome>>();
  readonly #closing = new AbortController();

  /** @throws KVPEER_INVALID_OPTION for keys whose hash cannot be computed here */
  static async create(
    peer: PullingPeer,
    options: SpeculativePullOptions,
    parts: SpeculativePullParts,
  ): Promise<SpeculativePulls> {
    const algorithm = ALGORITHM_OF_KEY_BYTES.get(peer.keyBytes);
    if (algorithm === undefined) {
      throw new KvpeerError(
        'KVPEER_INVALID_OPTION',
        `blocks are not pulled ahead with keys of ${peer.keyBytes} bytes; give a peer with keys of 36 bytes (SHA-256) or 20 (xxhash)`,
      );
    }
    const { tokensPerHash, hashSeed } = options;
    const hasher = await BlockHasher.create({
      algorithm,
      tokensPerHash,
      ...(hashSeed === undefined ? {} : { seed: hashSeed }),
    });
    return new SpeculativePulls(peer, hasher, options, parts);
  }

  private constructor(
    peer: PullingPeer,
    hasher: BlockHasher,
    options: SpeculativePullOptions,
    { log, registry }: SpeculativePullParts,
  ) {
    this.#peer = peer;
    this.#hasher = hasher;
    this.#options = options;
    this.#log = log;
    const registers = [registry];
    this.#outcomes = new Counter({
      name: 'kvpeer_speculative_pulls_total',
      help: 'Pulls begun while the request was on its way to the engine, by how they ended',
      labelNames: ['outcome'],
      registers,
    });
    this.#blocks = new Counter({
      name: 'kvpeer_speculative_blocks_total',
      help: 'Blocks that such pulls brought',
      registers,
    });
  }

  /** The hook: starts a pull where there is something to pull, and returns at once. */
  readonly onDecision = (decision: PullDecision): void => {
    if (decision.kind !== 'pull' || this.#closing.signal.aborted) return;
    const source = decision.params.remote_kv_source;
    const tokenIds = source === undefined ? undefined : decision.tokenIds();
    if (tokenIds === undefined) return;
    if (this.#running.size >= this.#options.maxRunning) {
      this.#outcomes.inc({ outcome: 'busy' satisfies PullOutcome });
      return;
    }
    const pull = this.#pull(source, tokenIds, decision.signal);
    this.#running.add(pull);
    void pull.then((outcome) => {
      this.#running.delete(pull);
      this.#outcomes.inc({ outcome });
    });
  };

  /** Gives up what runs. */
  async close(): Promise<void> {
    this.#closing.abort();
    await Promise.all(this.#running);
  }

  /** Never rejects. */
  async #pull(source: unknown, tokenIds: Uint32Array, requestEnd: AbortSignal): Promise<PullOutcome> {
    const late = AbortSignal.timeout(this.#options.maxMs);
    const signal = AbortSignal.any([requestEnd, late, this.#closing.signal]);
    let request: PeerRequest | undefined;
    const finish = (): void => request?.finish();
    const isOver = (): boolean => signal.aborted;
    try {
      signal.addEventListener('abort', finish, { once: true });
      const { remote_host, remote_port } = source as Readonly<Record<string, unknown>>;
      // Dials at once, while the hashes are computed.
      request = this.#peer.open({ remote_kv_source: { remote_host, remote_port } });
      const keys = await this.#keysOf(tokenIds, signal);
      if (isOver()) return endOf(late);
      if (keys.length === 0) return 'short';
      const { leadingCount } = await request.lookup(keys);
      if (isOver()) return endOf(late);
      if (leadingCount === 0) return 'nothing';
      const leading = keys.subarray(0, leadingCount * this.#peer.keyBytes);
      this.#describe(leading, tokenIds);
      const load = await request.load(leading);
      const { pulledCount } = load;
      load.release();
      this.#blocks.inc(pulledCount);
      if (pulledCount > 0) return 'pulled';
      return isOver() ? endOf(late) : 'nothing';
    } catch (err) {
      if (isOver()) return endOf(late);
      this.#log.warn({ err }, 'blocks could not be pulled ahead of a request');
      return 'failed';
    } finally {
      signal.removeEventListener('abort', finish);
      finish();
    }
  }

  /** With the tokens known, KV events can announce what arrives. */
  #describe(keys: Uint8Array, tokenIds: Uint32Array): void {
    const { tokensPerHash, hashesPerChunk = 1 } = this.#options;
    this.#peer.describe(keys, { tokenIds, tokensPerBlock: tokensPerHash * hashesPerChunk });
  }

  /** Keys of the prompt's full blocks, up to the bound, a piece per turn of the event loop. */
  async #keysOf(tokenIds: Uint32Array, signal: AbortSignal): Promise<Uint8Array> {
    const { tokensPerHash, hashesPerChunk = 1, maxBytes } = this.#options;
    const { blockBytes, keyBytes } = this.#peer;
    const tokensPerBlock = tokensPerHash * hashesPerChunk;
    const count = Math.min(Math.floor(tokenIds.length / tokensPerBlock), Math.floor(maxBytes / blockBytes));
    const keys = new Uint8Array(count * keyBytes);
    const hashBytes = keyBytes - GROUP_BYTES;
    let parent: Uint8Array | undefined;
    for (let first = 0; first < count && !signal.aborted; first += BLOCKS_PER_TURN) {
      const end = Math.min(count, first + BLOCKS_PER_TURN);
      const piece = tokenIds.subarray(first * tokensPerBlock, end * tokensPerBlock);
      const hashes = this.#hasher.blockHashes(piece, {}, parent);
      for (let block = first; block < end; block += 1) {
        // A block of several hashes has the name of the last.
        const at = ((block - first + 1) * hashesPerChunk - 1) * hashBytes;
        keys.set(hashes.subarray(at, at + hashBytes), block * keyBytes);
      }
      parent = hashes.subarray(hashes.length - hashBytes);
      if (end < count) await nextTurn();
    }
    return keys;
  }
}

function endOf(late: AbortSignal): PullOutcome {
  return late.aborted ? 'late' : 'cancelled';
}
