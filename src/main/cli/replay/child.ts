// Entry of one peer process of the replay: a real peer, driven by the parent over IPC, gone when the parent is.
import { monitorEventLoopDelay, type IntervalHistogram } from 'node:perf_hooks';
import { Peer } from '../../peer.js';
import { KvpeerError } from '../../errors.js';
import type { PeerApi } from '../../peer-api.js';
import { codeOf } from './failure.js';
import type {
  AnswerMessage,
  CallMessage,
  PeerCallName,
  PeerCalls,
  PeerFigures,
  StartArguments,
} from './messages.js';
import { findPrefix, runRequest } from './requester.js';

/** The histogram's timer interval; what it measures beyond that is the loop's delay. */
const LOOP_RESOLUTION_MS = 10;

/** How long the last releases may take to arrive from other peers before the figures are taken. */
const SETTLE_MS = 3000;
const SETTLE_STEP_MS = 10;

/** A parent that is gone waits for nobody: the peer gets this long to tell other peers and unmap. */
const ORPHAN_CLOSE_MS = 3000;

let running: PeerApi | undefined;
let loopDelay: IntervalHistogram | undefined;

function startedPeer(): PeerApi {
  if (running === undefined)
    throw new KvpeerError('KVPEER_CLOSED', 'this replay process has no running peer');
  return running;
}

async function start(settings: StartArguments): Promise<PeerCalls['start']['answer']> {
  const peer = await Peer.start({
    host: '127.0.0.1',
    port: 0,
    blockBytes: settings.blockBytes,
    poolBytes: settings.poolBytes,
    shards: settings.shards,
    dataPlane: settings.dataPlane,
    logLevel: 'warn',
  });
  running = peer;
  loopDelay = monitorEventLoopDelay({ resolution: LOOP_RESOLUTION_MS });
  loopDelay.enable();
  const colon = peer.address.lastIndexOf(':');
  return {
    pid: process.pid,
    host: peer.address.slice(0, colon),
    port: Number(peer.address.slice(colon + 1)),
    shards: peer.shardCount,
    dataPlane: {
      name: peer.dataPlane.name,
      version: peer.dataPlane.version,
      transports: peer.dataPlane.transports,
    },
  };
}

/** The peer's figures once the releases on their way have arrived, or after SETTLE_MS as they are. */
async function takeFigures(peer: PeerApi): Promise<PeerFigures> {
  const deadline = performance.now() + SETTLE_MS;
  let stats = peer.stats();
  while ((stats.pins > 0 || stats.slots.quarantined > 0) && performance.now() < deadline) {
    await new Promise((resolve) => setTimeout(resolve, SETTLE_STEP_MS));
    stats = peer.stats();
  }
  const loopP99Ms = (loopDelay?.percentile(99) ?? 0) / 1e6;
  return {
    bytesServed: stats.bytesServed,
    served: stats.served,
    pinsAtEnd: stats.pins,
    quarantinedAtEnd: stats.slots.quarantined,
    evictions: stats.evictions,
    eventLoopP99Ms: Math.max(0, loopP99Ms - LOOP_RESOLUTION_MS),
  };
}

async function answer(message: CallMessage): Promise<PeerCalls[PeerCallName]['answer']> {
  switch (message.name) {
    case 'start':
      return start(message.argument);
    case 'prefix':
      return findPrefix(startedPeer(), message.argument);
    case 'run':
      return runRequest(startedPeer(), message.argument);
    case 'figures':
      return takeFigures(startedPeer());
    case 'close':
      await running?.close();
      return null;
  }
}

async function handle(message: CallMessage): Promise<void> {
  const { call } = message;
  let reply: AnswerMessage;
  try {
    reply = { call, answer: await answer(message) };
  } catch (error) {
    const text = error instanceof Error ? error.message : String(error);
    reply = { call, error: { code: codeOf(error), message: text } };
  }
  // A parent that is gone takes no answer; 'disconnect', which follows, is the end of this process.
  if (process.connected) process.send?.(reply, () => undefined);
  if (message.name === 'close' && process.connected) process.disconnect();
}

process.on('message', (message) => {
  void handle(message as CallMessage);
});

process.on('disconnect', () => {
  setTimeout(() => process.exit(), ORPHAN_CLOSE_MS).unref();
  const closed = running === undefined ? Promise.resolve() : running.close({ drainMs: 0 });
  void closed.finally(() => process.exit());
});

// A terminal's Ctrl-C reaches the whole process group; the parent decides what it means.
process.on('SIGINT', () => undefined);
