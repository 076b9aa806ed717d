// The typed face of the addon's NIXL part: the library, the receive agent, send agents, writes.

import { loadCoreAddon } from './index.js';
import type { ControlHandle, PoolHandle } from './index.js';

declare const brand: unique symbol;
/** A receive agent; valid in the thread that made it. */
export type ReceiveAgentHandle = number & { readonly [brand]: 'ReceiveAgentHandle' };
/** A send agent; valid in the thread that made it. */
export type SendAgentHandle = number & { readonly [brand]: 'SendAgentHandle' };
/** A peer whose metadata one send agent has loaded; valid with that agent only. */
export type NixlPeerHandle = number & { readonly [brand]: 'NixlPeerHandle' };

/** What had arrived and not been read at some moment. Empty: nothing. */
export type Arrivals = Float64Array & { readonly [brand]: 'Arrivals' };

/** The agent that peers write through. Its metadata goes into `connect`. */
export interface ReceiveAgent {
  readonly handle: ReceiveAgentHandle;
  /** Globally unique. */
  readonly name: string;
  readonly metadata: Uint8Array;
  /** Address of slot 0. */
  readonly baseAddr: number;
}

/** NIXL's word on a request. Negative: failed; nixlStatusText() has the words. */
export const NixlStatus = { Done: 0, InProgress: 1 } as const;

/** What post() and warmUp() leave in their `result` array. */
export const PostResult = {
  /** Pairs that the request writes. */
  TakenCount: 0,
  /** 0 when the request has ended inside the call. */
  RequestId: 1,
  /** NixlStatus or a failure. */
  Status: 2,
  /** postMany(): pairs and requests that had ended before the request that the other words tell of. */
  EndedPairCount: 3,
  EndedRequestCount: 4,
  Words: 5,
} as const;

export interface SendAgentStats {
  readonly peerCount: number;
  readonly openRequestCount: number;
  readonly postedRequestCount: number;
  readonly postedBytes: number;
  readonly completedRequestCount: number;
  readonly completedBytes: number;
  readonly failedRequestCount: number;
}

/**
 * What a mover needs of a send agent's library. Every call checks its arguments and throws on a wrong handle, index or
 * length, also when the handle belongs to another thread.
 *
 * A *pair* is two int32: the slot here, the slot at the peer.
 */
export interface NixlSender {
  /** About 30 ms, on this thread. The agent has the pool and its scratch page registered and is never published. */
  createSendAgent(pool: PoolHandle, numBlocks: number, blockBytes: number): SendAgentHandle;
  /**
   * About 5 ms. Cuts every write in flight: no byte written to a source slot afterwards is sent, but what is in the
   * kernel's socket buffers already still lands.
   */
  destroySendAgent(agent: SendAgentHandle): void;

  /**
   * Loads a peer's metadata (at most 64 KiB) and checks that it covers the announced blocks.
   *
   * @param hasScratch the peer registered a 4 KiB page behind its last block
   * @throws an error with code KVPEER_PEER_REJECTED and the reason; nothing of the peer stays behind then
   */
  addPeer(
    agent: SendAgentHandle,
    blob: Uint8Array,
    baseAddr: number,
    numBlocks: number,
    hasScratch: boolean,
  ): NixlPeerHandle;
  /** @returns false while requests to it are open: nothing is changed then */
  removePeer(agent: SendAgentHandle, peer: NixlPeerHandle): boolean;

  /**
   * Copies (slot, index) of the positions whose status byte is one of the two into `pairs`, sorted so that neighbours
   * become one descriptor. Offsets are bytes in the control mapping; slots and indexes are int32, statuses are bytes.
   *
   * @param pairs room for 2 * count elements
   * @returns the number of pairs, or -1 when a slot is not below localNumBlocks or an index not below remoteNumBlocks
   */
  preparePairs(
    control: ControlHandle,
    slotsOffset: number,
    indexesOffset: number,
    statusesOffset: number,
    count: number,
    statusA: number,
    statusB: number,
    localNumBlocks: number,
    remoteNumBlocks: number,
    pairs: Int32Array,
  ): number;
  /**
   * Writes pairs from `first` on as one request of at most 64 descriptors and 4 MiB (at least one block). The copy
   * happens in this call, over TCP too. Throws when one of the pairs is out of bounds.
   *
   * @param result see PostResult
   */
  post(
    agent: SendAgentHandle,
    peer: NixlPeerHandle,
    pairs: Int32Array,
    first: number,
    count: number,
    result: Int32Array,
  ): void;
  /**
   * As post(), again and again while the requests end inside the call, at most 16 of them and for as long as a word of
   * the control mapping (at `watchOffset`, bytes) is `watchValue` as an unsigned number. A pair out of bounds throws
   * when its request comes.
   */
  postMany(
    agent: SendAgentHandle,
    peer: NixlPeerHandle,
    pairs: Int32Array,
    first: number,
    count: number,
    result: Int32Array,
    control: ControlHandle,
    watchOffset: number,
    watchValue: number,
  ): void;
  /** Writes the scratch page to the peer's scratch page: the first write of a connection takes 20 to 130 ms. */
  warmUp(agent: SendAgentHandle, peer: NixlPeerHandle, result: Int32Array): void;
  /**
   * Looks at every open request once and releases those that have ended.
   *
   * @param ended [request id, status] for each that ended, as many as fit
   * @returns how many
   */
  poll(agent: SendAgentHandle, ended: Int32Array): number;
  stats(agent: SendAgentHandle): SendAgentStats;
  statusText(status: number): string;
}

/** All of NIXL that kvpeer uses. */
export interface Nixl extends NixlSender {
  /**
   * Loads the library into the process (once, for all threads; it stays for ever). Its environment must be set before:
   * see applyNixlEnvironment().
   *
   * @param libraryPath absolute path of libnixl_capi.so, see resolveNixl()
   * @throws an error with code KVPEER_NIXL_UNAVAILABLE and the reason
   */
  load(libraryPath: string): void;
  /**
   * Loads the library when that has not been done and makes an agent with a progress thread and the pool registered,
   * on a thread of libuv's pool. The agent goes with this thread's env at the latest.
   *
   * Rejects with code KVPEER_NIXL_UNAVAILABLE and the reason.
   */
  createReceiveAgent(
    libraryPath: string,
    pool: PoolHandle,
    numBlocks: number,
    blockBytes: number,
  ): Promise<ReceiveAgent>;
  /** Once it resolves no TCP write of a peer lands through this agent any more, also not one that was half way. */
  destroyReceiveAgent(agent: ReceiveAgentHandle): Promise<void>;
  /**
   * Peers' TCP writes that have arrived in this host's kernel but not yet in the pool: for haveBeenRead(). About 0.1 ms,
   * it walks the process's descriptors.
   */
  waitingArrivals(agent: ReceiveAgentHandle): Arrivals;
  /** Whether all of them have been read (or dropped with their connection) by now. */
  haveBeenRead(arrivals: Arrivals): boolean;
}

interface NixlAddon {
  readonly nixlLoad: Nixl['load'];
  readonly nixlCreateReceiveAgent: Nixl['createReceiveAgent'];
  readonly nixlDestroyReceiveAgent: Nixl['destroyReceiveAgent'];
  readonly nixlWaitingArrivals: Nixl['waitingArrivals'];
  readonly nixlHaveBeenRead: Nixl['haveBeenRead'];
  readonly nixlCreateSendAgent: Nixl['createSendAgent'];
  readonly nixlDestroySendAgent: Nixl['destroySendAgent'];
  readonly nixlAddPeer: Nixl['addPeer'];
  readonly nixlRemovePeer: Nixl['removePeer'];
  readonly nixlPreparePairs: Nixl['preparePairs'];
  readonly nixlPost: Nixl['post'];
  readonly nixlPostMany: Nixl['postMany'];
  readonly nixlWarmUp: Nixl['warmUp'];
  readonly nixlPoll: Nixl['poll'];
  readonly nixlStats: Nixl['stats'];
  readonly nixlStatusText: Nixl['statusText'];
}

let loaded: Nixl | undefined;

/**
 * The addon's NIXL part, for this thread. The addon loads without NIXL; the library itself comes with load() or
 * createReceiveAgent().
 *
 * @throws NativeUnavailableError when the addon cannot be loaded
 */
export function loadNixl(): Nixl {
  loaded ??= wrap(loadCoreAddon() as NixlAddon);
  return loaded;
}

function wrap(addon: NixlAddon): Nixl {
  return {
    load: addon.nixlLoad,
    createReceiveAgent: addon.nixlCreateReceiveAgent,
    destroyReceiveAgent: addon.nixlDestroyReceiveAgent,
    waitingArrivals: addon.nixlWaitingArrivals,
    haveBeenRead: addon.nixlHaveBeenRead,
    createSendAgent: addon.nixlCreateSendAgent,
    destroySendAgent: addon.nixlDestroySendAgent,
    addPeer: addon.nixlAddPeer,
    removePeer: addon.nixlRemovePeer,
    preparePairs: addon.nixlPreparePairs,
    post: addon.nixlPost,
    postMany: addon.nixlPostMany,
    warmUp: addon.nixlWarmUp,
    poll: addon.nixlPoll,
    stats: addon.nixlStats,
    statusText: addon.nixlStatusText,
  };
}
