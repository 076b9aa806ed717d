// Starts the KV events of a node: residency, sockets, and the times at which the numbering begins again.

import type { Logger } from 'pino';

import type { SlotTable } from '../../shared/slot-state.js';
import { KvpeerError } from '../errors.js';
import type { ResolvedOptions } from '../options.js';
import { splitAdvertise } from '../options.js';
import { formatHostPort } from '../params/index.js';
import type { BlockDescription, PackedKeys } from '../peer-api.js';
import { KvEvents } from './kv-events.js';
import type { NumberedBatch } from './numbering.js';
import { ResidencyFeed } from './residency.js';
import { EventSockets } from './sockets.js';

export interface NodeEventsParts {
  readonly options: ResolvedOptions;
  readonly table: SlotTable;
  readonly marks: SharedArrayBuffer;
  readonly log: Logger;
}

/** Where a router reaches the engine of this pod, when nothing else is said: llm-d's sidecar. */
const SERVING_PORT = 8000;
/** Descriptions of blocks that are not here: the ancestors of those that are, and blocks on their way. */
const MIN_ABSENT = 65_536;

/** The KV events of a running node. */
export class NodeEvents {
  readonly events: KvEvents;
  readonly sockets: EventSockets;
  readonly #options: ResolvedOptions;
  #ports: { readonly port: number; readonly replayPort: number | undefined } | undefined;
  #settling: NodeJS.Timeout | undefined;
  #resubscription: NodeJS.Timeout | undefined;
  #restartedMs = -Infinity;
  /** Subscriptions less requests from 0, since they were last compared. */
  #unasked = 0;

  /** @throws KVPEER_BIND */
  static async start(parts: NodeEventsParts): Promise<NodeEvents> {
    const node = new NodeEvents(parts);
    try {
      node.#ports = await node.sockets.bind();
    } catch (error) {
      await node.close();
      throw error;
    }
    node.#settle();
    const topic = topicOf(parts.options);
    parts.log.info(
      { part: 'events', topic, host: hostOf(parts.options), ...node.#ports },
      'KV events are published',
    );
    return node;
  }

  private constructor({ options, table, marks, log }: NodeEventsParts) {
    this.#options = options;
    this.sockets = new EventSockets({
      host: hostOf(options),
      port: options.kvEventsPort === 'off' ? 0 : options.kvEventsPort,
      replayPort: options.kvEventsReplayPort === 'off' ? undefined : options.kvEventsReplayPort,
      topic: topicOf(options),
      log: log.child({ part: 'events' }),
      onSubscribed: () => {
        this.#onSubscribed();
      },
      replay: (from) => this.#replay(from),
    });
    this.events = new KvEvents(
      {
        form: options.kvEventsForm,
        rank: options.kvEventsRank,
        announcesUnknown: options.kvEventsUnknown,
        tokensPerBlock: options.kvEventsBlockTokens,
        maxBatches: options.kvEventsBufferBatches,
        maxBytes: options.kvEventsBufferBytes,
        maxAbsent: Math.max(MIN_ABSENT, table.layout.numBlocks),
      },
      {
        feed: new ResidencyFeed(table, marks),
        publish: (batch) => {
          this.sockets.publish(batch);
        },
        timeS: () => Date.now() / 1000,
        defer: (callback) => void setImmediate(callback),
      },
    );
  }

  get port(): number | undefined {
    return this.#ports?.port;
  }

  get replayPort(): number | undefined {
    return this.#ports?.replayPort;
  }

  /** See PeerApi.describe. @throws KVPEER_INVALID_ARGUMENT */
  describe(keys: PackedKeys, keyBytes: number, description: BlockDescription): void {
    const { tokenIds, tokensPerBlock, loraName, extraKeys } = description;
    const count = keys.byteLength / keyBytes;
    if (!Number.isInteger(count) || !Number.isInteger(tokensPerBlock) || tokensPerBlock < 1) {
      throw new KvpeerError(
        'KVPEER_INVALID_ARGUMENT',
        `describe: ${keys.byteLength} bytes of keys of ${keyBytes} with ${tokensPerBlock} tokens each; give whole keys and a whole number of tokens`,
      );
    }
    if (tokenIds.length < count * tokensPerBlock) {
      throw new KvpeerError(
        'KVPEER_INVALID_ARGUMENT',
        `describe: ${tokenIds.length} tokens for ${count} blocks of ${tokensPerBlock}; give the tokens of every block`,
      );
    }
    for (let t = 0; t < count * tokensPerBlock; t += 1) {
      const token = tokenIds[t];
      if (!Number.isInteger(token) || token < 0 || token > MAX_TOKEN_ID) {
        throw new KvpeerError(
          'KVPEER_INVALID_ARGUMENT',
          `describe: token ${t} is ${token}; give whole numbers of 32 bits, as a router reads them`,
        );
      }
    }
    if (description.parent !== undefined && description.parent.byteLength !== keyBytes) {
      throw new KvpeerError(
        'KVPEER_INVALID_ARGUMENT',
        `describe: a parent of ${description.parent.byteLength} bytes; give its whole key of ${keyBytes}`,
      );
    }
    if (loraName !== undefined && typeof loraName !== 'string') {
      throw new KvpeerError(
        'KVPEER_INVALID_ARGUMENT',
        `describe: loraName is of type ${typeof loraName}; give the name of the adapter, or leave it out`,
      );
    }
    if (!areExtraKeys(extraKeys)) {
      throw new KvpeerError(
        'KVPEER_INVALID_ARGUMENT',
        'describe: extraKeys are per block a list of texts, and of pairs of a text and a whole number of 32 bits; give them so, or undefined for a block without any',
      );
    }
    let parent = description.parent === undefined ? undefined : hashOf(description.parent);
    for (let i = 0; i < count; i += 1) {
      const key = keys.subarray(i * keyBytes, (i + 1) * keyBytes);
      const block = Uint32Array.from({ length: tokensPerBlock }, (_, t) => tokenIds[i * tokensPerBlock + t]);
      this.events.describe(key, { tokenIds: block, parent, loraName, extraKeys: extraKeys?.[i] });
      parent = hashOf(key);
    }
  }

  async close(): Promise<void> {
    clearTimeout(this.#settling);
    clearTimeout(this.#resubscription);
    this.events.close();
    await this.sockets.close();
  }

  /**
   * A router that knew an earlier process of this address dials again for some seconds. The step back to 0 that it must
   * see has then gone to nobody, so the numbering begins again once, when every router is back.
   */
  #settle(): void {
    this.#settling = setTimeout(() => {
      this.events.restart();
    }, this.#options.kvEventsSettleMs);
    this.#settling.unref();
  }

  /**
   * A router that joins late is told what is here: one with replay asks from 0 when it connects, for the others the
   * numbering begins again. Which of them a subscriber is shows by whether a request came with it, before or after.
   */
  #onSubscribed(): void {
    this.#unasked += 1;
    this.#judgeLater();
  }

  #replay(from: number): readonly NumberedBatch[] {
    if (from === 0) {
      this.#unasked -= 1;
      this.#judgeLater();
    }
    return this.events.replay(from);
  }

  #judgeLater(): void {
    if (this.#resubscription !== undefined) return;
    const { kvEventsReplayPort, kvEventsResubscribeMs } = this.#options;
    const sinceRestart = this.#restartedMs + kvEventsResubscribeMs - performance.now();
    const waitMs = kvEventsReplayPort === 'off' ? Math.max(0, sinceRestart) : kvEventsResubscribeMs;
    this.#resubscription = setTimeout(() => {
      this.#resubscription = undefined;
      const isUntold = this.#unasked > 0;
      this.#unasked = 0;
      if (!isUntold) return;
      this.#restartedMs = performance.now();
      this.events.restart();
    }, waitMs);
    this.#resubscription.unref();
  }
}

const GROUP_BYTES = 4;
const MAX_TOKEN_ID = 0xffff_ffff;

function hashOf(key: Uint8Array): Buffer {
  return Buffer.from(key.subarray(0, key.length - GROUP_BYTES));
}

function areExtraKeys(entries: unknown): boolean {
  if (entries === undefined) return true;
  return (
    Array.isArray(entries) &&
    entries.every(
      (entry: unknown) => entry === undefined || (Array.isArray(entry) && entry.every(isExtraKey)),
    )
  );
}

function isExtraKey(key: unknown): boolean {
  if (typeof key === 'string') return true;
  if (!Array.isArray(key) || key.length !== 2) return false;
  const [name, place] = key as unknown[];
  return typeof name === 'string' && typeof place === 'number' && (place | 0) === place;
}

function hostOf({ kvEventsHost, host }: ResolvedOptions): string {
  return kvEventsHost === '' ? host : kvEventsHost;
}

/** `kv@<pod>@<model>`: the pod as the router calls it, so that its events are booked under the endpoint it routes to. */
export function topicOf({ kvEventsPod, kvEventsModel, advertise, host }: ResolvedOptions): string {
  const podHost = splitAdvertise(advertise)?.host ?? host;
  const pod = kvEventsPod === '' ? formatHostPort({ host: podHost, port: SERVING_PORT }) : kvEventsPod;
  return `kv@${pod}@${kvEventsModel}`;
}
