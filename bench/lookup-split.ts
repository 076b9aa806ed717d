// Where does a lookup's time at the producer go? Each step in a loop of its own, hot, on the real parts: the addon's sockets,
// real messages, the real index, the rings of a running worker.
//
//     receive (libzmq and scan) -> ring -> [worker: match] -> ring -> answer, send (libzmq)
//
// The keys of a lookup stay in libzmq's memory until they are matched; `copy` is what lists of other forms and stores take.
// All but `match` are CPU of the main thread.

import 'zeromq';

import { loadNative, unpackMatch } from '../native/index.js';
import { ReceivedField, ReceivedKind, loadZmq } from '../native/zmq.js';
import type { MessageToken } from '../native/zmq.js';
import { DEFAULT_LIMITS } from '../src/main/protocol/limits.js';
import { HIT } from '../src/main/protocol/messages.js';
import type { LookupMessage } from '../src/main/protocol/messages.js';
import { scan } from '../src/main/protocol/scan.js';
import { writeLookup, writeLookupResp } from '../src/main/protocol/write.js';
import { createLogger } from '../src/main/observe/log.js';
import { submitForResult } from '../src/main/shards/promises.js';
import type { KeySpan, SlotSet } from '../src/main/shards/shard-client.js';
import type { StartedShards } from '../src/main/shards/start.js';
import { startShards } from '../src/main/shards/start.js';
import { ExtentFlag } from '../src/shared/operations.js';
import { validateOptions } from '../src/main/options.js';
import { drive, ringWay, ringExtents } from './parts-rings.js';
import type { RowBook, Section } from './rows.js';
import { KEY_BYTES, benchKeys, randomKeys } from './support/keys.js';
import { PLAIN_NODE, poolBytesFor } from './support/nodes.js';

const KEYS = 1024;
const OUTSTANDING = 16;

/** us of this thread's CPU per call, by round. */
function cpuUsOf(rounds: number, callsPerRound: number, call: (i: number) => void): number[] {
  const native = loadNative();
  return Array.from({ length: rounds + 1 }, () => {
    const start = native.threadCpuNs();
    for (let i = 0; i < callsPerRound; i++) call(i);
    return (native.threadCpuNs() - start) / 1000 / callsPerRound;
  }).slice(1);
}

/** What the sockets take, us of this thread per message: the lookups go from a dealer to a receiver in this process. */
async function onSockets(rows: RowBook, frames: readonly Buffer[], rounds: number): Promise<void> {
  const native = loadNative();
  const zmq = loadZmq();
  const context = zmq.createContext();
  const { messageBytes: maxMessageBytes, keyCount: maxKeys, stringBytes: maxIdBytes } = DEFAULT_LIMITS;
  const { handle: receiver } = zmq.createReceiver(context, () => undefined, {
    ...{ maxMessageBytes, keyBytes: KEY_BYTES, maxKeys, maxIdBytes },
    notice: Buffer.alloc(32, 1),
  });
  const dealer = zmq.createDealer(context, () => undefined, {
    routingId: '127.0.0.1:7000',
    heartbeatMs: 10_000,
    heartbeatTimeoutMs: 60_000,
    sendHighWaterMark: 10_000,
    maxInboundBytes: 1024,
    ipv6: false,
  });
  const fields = new Float64Array(ReceivedField.Count);
  const hits = new Uint8Array(KEYS).fill(HIT);
  /** Takes `count` messages. @returns ns of this thread in receive() */
  const receiveAll = async (count: number): Promise<number> => {
    let spentNs = 0;
    for (let received = 0; received < count;) {
      const tokens: number[] = [];
      const startNs = native.threadCpuNs();
      for (;;) {
        zmq.receive(receiver, fields);
        if (fields[ReceivedField.Kind] === ReceivedKind.None) break;
        received += 1;
        if (fields[ReceivedField.Kind] === ReceivedKind.Lookup) tokens.push(fields[ReceivedField.Token]);
      }
      if (tokens.length > 0) spentNs += native.threadCpuNs() - startNs;
      for (const token of tokens) zmq.dropMessage(token as MessageToken);
      if (received < count) await new Promise((resolve) => setTimeout(resolve, 5));
    }
    return spentNs;
  };
  try {
    zmq.connectDealer(dealer, zmq.bindReceiver(receiver, 'tcp://127.0.0.1:*', false));
    const receiveUs: number[] = [];
    const sendUs: number[] = [];
    for (let round = -2; round < rounds; round++) {
      for (const frame of frames) zmq.sendDealer(dealer, frame);
      const receivedNs = await receiveAll(frames.length);
      const startNs = native.threadCpuNs();
      for (let i = 0; i < frames.length; i++) zmq.sendAnswer(dealer, `split-${i}`, hits, 0, i);
      const sentNs = native.threadCpuNs() - startNs;
      await receiveAll(frames.length);
      if (round < 0) continue;
      receiveUs.push(receivedNs / 1000 / frames.length);
      sendUs.push(sentNs / 1000 / frames.length);
    }
    rows.measured('lookup.split.receiveUs', receiveUs, 'us');
    rows.measured(
      'lookup.split.scanUs',
      cpuUsOf(rounds, 500, (i) =>
        zmq.readMessage(frames[i % frames.length], KEY_BYTES, maxKeys, maxIdBytes, fields),
      ),
      'us',
    );
    rows.measured('lookup.split.sendUs', sendUs, 'us');
  } finally {
    zmq.closeDealer(dealer);
    zmq.closeReceiver(receiver);
    zmq.closeContext(context);
  }
}

export const lookupSplitBench: Section = {
  group: 'lookup',
  title: 'the steps of a lookup at the producer',
  goals: [],
  prefixes: ['lookup.split.'],
  async run({ isQuick, rows }) {
    const blockCount = isQuick ? 65_536 : 262_144;
    const rounds = isQuick ? 5 : 15;
    const calls = 500;
    const frames = Array.from({ length: 64 }, (_, i) =>
      writeLookup(`split-${i}`, randomKeys(i + 1, KEYS, blockCount), KEY_BYTES, 0, { ttlMs: 8000 }),
    );
    const messages = frames.map(lookupOf);
    const hits = new Uint8Array(KEYS).fill(HIT);
    await onSockets(rows, frames, rounds);
    rows.measured(
      'lookup.split.plain.scanUs',
      cpuUsOf(rounds, calls, (i) => scan(frames[i & 63], DEFAULT_LIMITS)),
      'us',
    );
    rows.measured(
      'lookup.split.plain.answerUs',
      cpuUsOf(rounds, calls, (i) => {
        const { kvRequestId, keys } = messages[i & 63];
        writeLookupResp(kvRequestId, keys, hits, { roundSeq: 0 });
      }),
      'us',
    );

    const options = validateOptions({
      ...PLAIN_NODE,
      poolBytes: poolBytesFor(blockCount, PLAIN_NODE.blockBytes),
    });
    const shards = await startShards({ ...options, arenaBytes: undefined }, createLogger('error'));
    try {
      const { client } = shards;
      for (let first = 0; first < blockCount; first += 4096) {
        const bytes = benchKeys(first, 4096);
        const set = await submitForResult<SlotSet>('store', (done) => {
          client.reserve({ bytes, first: 0, stride: KEY_BYTES, count: 4096 }, done);
        });
        await new Promise<void>((resolve) => {
          client.publish(set, { keepPins: false }, () => {
            resolve();
          });
        });
      }
      const arena = Buffer.from(
        shards.memory.control,
        shards.memory.layout.arenaOffset,
        KEYS * KEY_BYTES * 2,
      );
      rows.measured(
        'lookup.split.copyUs',
        cpuUsOf(rounds, calls, (i) => {
          const { keys } = messages[i & 63];
          // As extents are made: at the same address modulo 8 as in the message.
          const at = keys.bytes.byteOffset + keys.first;
          arena.set(keys.bytes.subarray(keys.first, keys.first + KEYS * keys.stride), at % 8);
        }),
        'us',
      );
      const extents = ringExtents(shards, OUTSTANDING);
      await drive(ringWay(shards), extents, calls, OUTSTANDING);
      const ringUs: number[] = [];
      for (let round = 0; round < rounds; round++)
        ringUs.push((await drive(ringWay(shards), extents, calls * 2, OUTSTANDING)).cpuUs);
      rows.measured('lookup.split.ringUs', ringUs, 'us');
      rows.measured('lookup.split.matchUs', matchUs(shards, messages, rounds), 'us');
      /** Matches and releases, 16 under way. @returns us of this thread per match */
      const matches = async (count: number, spans: readonly KeySpan[]): Promise<number> => {
        const native = loadNative();
        const start = native.threadCpuNs();
        await new Promise<void>((resolve, reject) => {
          let asked = 0;
          let ended = 0;
          const next = (): void => {
            if (asked === count) return;
            client.match(spans[asked++ & 63], {}, (failure, set) => {
              if (failure !== undefined || set === undefined) {
                reject(new Error(`a match failed: ${failure?.code ?? ''}`));
                return;
              }
              client.release(set);
              ended += 1;
              if (ended === count) resolve();
              else next();
            });
          };
          for (let i = 0; i < OUTSTANDING; i++) next();
        });
        return (native.threadCpuNs() - start) / 1000 / count;
      };
      for (const [name, spans] of [
        ['lookup.split.matchAndReleaseUs', messages.map(({ keys }) => keys)],
        ['lookup.split.match16AndReleaseUs', messages.map(({ keys }) => ({ ...keys, count: 16 }))],
      ] as const) {
        await matches(calls, spans);
        const samples: number[] = [];
        for (let round = 0; round < rounds; round++) samples.push(await matches(calls * 2, spans));
        rows.measured(name, samples, 'us');
      }
    } finally {
      await shards.close();
    }
  },
};

/** What a worker takes for a list, by the clock: here nobody else touches the index meanwhile. */
function matchUs(
  { client, memory }: StartedShards,
  messages: readonly LookupMessage[],
  rounds: number,
): number[] {
  const native = loadNative();
  const handle = native.attachControl(memory.control);
  const extents = messages.map(({ keys }) => {
    const set = client.extents.make({
      count: KEYS,
      keys,
      flags: ExtentFlag.Pin,
      pinLimit: KEYS,
      peerNumBlocks: 0,
    });
    if (set === undefined) throw new Error('the arena is full');
    return set.extent;
  });
  return Array.from({ length: rounds }, () => {
    const startMs = performance.now();
    for (const extent of extents) {
      const { hitCount } = unpackMatch(native.match(handle, extent, 0, -1, 0, -1));
      if (hitCount !== KEYS) throw new Error(`${hitCount} of ${KEYS} keys are there`);
    }
    const us = ((performance.now() - startMs) * 1000) / extents.length;
    for (const extent of extents) native.release(handle, extent);
    return us;
  });
}

function lookupOf(frame: Buffer): LookupMessage {
  const message = scan(frame, DEFAULT_LIMITS);
  if (message.type !== 'lookup') throw new Error('a lookup does not scan');
  return message;
}
