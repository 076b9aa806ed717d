// Pulls a prompt's blocks into the embedded peer while the request is still on its way to the engine.

import { setImmediate as nextTurn } from 'node:timers/promises';

import type { Logger } from 'pino';
import { Counter, type Registry } from 'prom-client';

import { KvpeerError } from '../errors.js';
import { eventKeysOf } from '../hashes/extra-keys.js';
import { BlockHasher, type BlockHashAlgorithm, type HashContext } from '../hashes/index.js';
import { isSameAddress, parseHostPort } from '../params/address.js';
import type { PeerAddress } from '../params/types.js';
import type { PeerApi, PeerRequest } from '../peer-api.js';
import type { Decision } from './hooks.js';
import type { Prompt, PromptFault } from './prompt.js';
import type { ServedModels } from './served-models.js';

/** The peer, as far as a pull needs it. */
export type PullingPeer = Pick<PeerApi, 'address' | 'open' | 'describe' | 'blockBytes' | 'keyBytes'>;

/** What was decided for a request (hooks.ts), as far as a pull needs it. */
export type PullDecision = Pick<Decision, 'api' | 'kind' | 'params' | 'rank' | 'prompt' | 'signal'>;

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
  /**
   * With `peer` the engine is told to pull from this process's peer, once that has slots for the blocks, or has them.
   * When the source has not answered by `waitMs`, the engine is told the source.
   */
  readonly engineAsks: 'source' | 'peer';
  readonly waitMs: number;
}

export interface SpeculativePullParts {
  readonly log: Logger;
  /** Where its metrics are registered. */
  readonly registry: Registry;
  readonly models: Pick<ServedModels<number>, 'find'>;
}

/** How a pull ended. */
export type PullOutcome =
  | 'pulled'
  /** The source has nothing that is not here. */
  | 'nothing'
  /** The prompt has no full block. */
  | 'short'
  /** Hashes cannot be computed from the body, or the model server does not say what a model's name stands for. */
  | PromptFault
  /** The source is this process's peer. */
  | 'self'
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
  readonly #self: PeerAddress | undefined;
  readonly #hasher: BlockHasher;
  readonly #options: SpeculativePullOptions;
  readonly #log: Logger;
  readonly #models: SpeculativePullParts['models'];
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
    { log, registry, models }: SpeculativePullParts,
  ) {
    this.#peer = peer;
    const self = parseHostPort(peer.address);
    this.#self = 'reason' in self ? undefined : self;
    this.#models = models;
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

  /**
   * Starts a pull where there is something to pull, and returns at once.
   *
   * @returns where the engine is to pull from instead of the source; undefined: from the source
   */
  begin(decision: PullDecision): Promise<PeerAddress | undefined> | undefined {
    const { api, kind, params } = decision;
    if (api !== 'generate' || kind !== 'pull' || this.#closing.signal.aborted) return undefined;
    const source = addressIn(params.remote_kv_source);
    if (source === undefined) return undefined;
    if (this.#self !== undefined && isSameAddress(source, this.#self)) {
      this.#count('self');
      return undefined;
    }
    if (this.#running.size >= this.#options.maxRunning) {
      this.#count('busy');
      return undefined;
    }
    return new Promise((resolve) => {
      const pull = this.#pull(source, decision, () => {
        resolve(this.#self);
      });
      this.#running.add(pull);
      void pull.then((outcome) => {
        this.#running.delete(pull);
        this.#count(outcome);
        resolve(undefined);
      });
      const { engineAsks, waitMs } = this.#options;
      if (engineAsks === 'source') resolve(undefined);
      else setTimeout(resolve, waitMs, undefined).unref();
    });
  }

  /** Gives up what runs. */
  async close(): Promise<void> {
    this.#closing.abort();
    await Promise.all(this.#running);
  }

  #count(outcome: PullOutcome): void {
    this.#outcomes.inc({ outcome });
  }

  /**
   * Never rejects.
   *
   * @param onExpected the blocks are on their way here
   */
  async #pull(source: PeerAddress, decision: PullDecision, onExpected: () => void): Promise<PullOutcome> {
    const late = AbortSignal.timeout(this.#options.maxMs);
    const signal = AbortSignal.any([decision.signal, late, this.#closing.signal]);
    let request: PeerRequest | undefined;
    const finish = (): void => request?.finish();
    const isOver = (): boolean => signal.aborted;
    try {
      signal.addEventListener('abort', finish, { once: true });
      // The leg leaves first, unless it waits for this.
      if (this.#options.engineAsks === 'source') await nextTurn();
      const prompt = decision.prompt();
      if (prompt === undefined) return 'no-tokens';
      if (typeof prompt === 'string') return prompt;
      const context = await this.#contextOf(prompt, decision.rank);
      if (typeof context === 'string') return context;
      if (isOver()) return endOf(late);
      if (this.#blockCount(prompt) === 0) return 'short';
      // Dials at once, while the hashes are computed.
      request = this.#peer.open({
        remote_kv_source: { remote_host: source.host, remote_port: source.port },
      });
      const keys = await this.#keysOf(prompt.tokenIds, context, signal);
      if (isOver()) return endOf(late);
      // The source was named by whoever routes by what it holds.
      const load = await request.load(keys, { expect: 'held', onStarted: onExpected });
      const { pulledCount } = load;
      const firstMissing = load.slots.indexOf(-1);
      const leadingCount = firstMissing < 0 ? load.count : firstMissing;
      load.release();
      if (leadingCount > 0) {
        this.#describe(keys.subarray(0, leadingCount * this.#peer.keyBytes), prompt.tokenIds, context);
        onExpected();
      }
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

  /** What goes into the hashes beside the tokens. */
  async #contextOf(prompt: Prompt, rank: number): Promise<HashContext | PromptFault> {
    const { model, cacheSalt, multimodal } = prompt;
    const context: HashContext = {
      ...(cacheSalt === undefined ? {} : { cacheSalt }),
      ...(multimodal.length === 0 ? {} : { multimodal }),
    };
    if (model === undefined) return context;
    const served = await this.#models.find(rank, model);
    if (served === undefined) return 'unknown-model';
    if (served.kind === 'base') return context;
    // Some engines put the adapter into the names of items as well; which do is not to be seen from here.
    return multimodal.length > 0 ? 'unknown-features' : { ...context, lora: served.adapter };
  }

  /** With the tokens known, KV events can announce what arrives. */
  #describe(keys: Uint8Array, tokenIds: Uint32Array, context: HashContext): void {
    const { tokensPerHash, hashesPerChunk = 1 } = this.#options;
    const tokensPerBlock = tokensPerHash * hashesPerChunk;
    const extraKeys = Array.from({ length: keys.length / this.#peer.keyBytes }, (_, block) =>
      eventKeysOf(context, block * tokensPerBlock, tokensPerBlock),
    );
    this.#peer.describe(keys, { tokenIds, tokensPerBlock, loraName: context.lora?.name, extraKeys });
  }

  /** Full blocks of the prompt, up to the bound of bytes. */
  #blockCount({ tokenIds }: Pick<Prompt, 'tokenIds'>): number {
    const { tokensPerHash, hashesPerChunk = 1, maxBytes } = this.#options;
    const full = Math.floor(tokenIds.length / (tokensPerHash * hashesPerChunk));
    return Math.min(full, Math.floor(maxBytes / this.#peer.blockBytes));
  }

  /** Keys of these blocks, a piece per turn of the event loop. */
  async #keysOf(tokenIds: Uint32Array, context: HashContext, signal: AbortSignal): Promise<Uint8Array> {
    const { tokensPerHash, hashesPerChunk = 1 } = this.#options;
    const { keyBytes } = this.#peer;
    const tokensPerBlock = tokensPerHash * hashesPerChunk;
    const count = this.#blockCount({ tokenIds });
    const keys = new Uint8Array(count * keyBytes);
    const hashBytes = keyBytes - GROUP_BYTES;
    let parent = this.#hasher.noneHash;
    for (let first = 0; first < count && !signal.aborted; first += BLOCKS_PER_TURN) {
      const end = Math.min(count, first + BLOCKS_PER_TURN);
      const tokenCount = first * tokensPerBlock;
      const piece = tokenIds.subarray(tokenCount, end * tokensPerBlock);
      const hashes = this.#hasher.blockHashes(piece, context, { parent, tokenCount });
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

function addressIn(section: unknown): PeerAddress | undefined {
  if (typeof section !== 'object' || section === null) return undefined;
  if (!('remote_host' in section) || !('remote_port' in section)) return undefined;
  const { remote_host: host, remote_port: port } = section;
  return typeof host === 'string' && typeof port === 'number' ? { host, port } : undefined;
}

function endOf(late: AbortSignal): PullOutcome {
  return late.aborted ? 'late' : 'cancelled';
}
