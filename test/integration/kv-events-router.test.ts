// KV events of a running peer at a model of llm-d's index, by its own rules of sequence and replay: nothing is lost.

import { type ChildProcessWithoutNullStreams, spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { createInterface } from 'node:readline';

import { afterEach, beforeAll, describe, expect, it } from 'vitest';

import { BlockHasher } from '../../src/main/hashes/index.js';
import type { PeerOptions } from '../../src/main/options.js';
import { Peer } from '../../src/main/peer.js';
import { freePort } from '../helpers/free-port.js';
import { CHECK_EVENTS, kvEventsPython } from '../helpers/kv-events-harness.js';

const BLOCK_BYTES = 4096;
const TOKENS = 16;
const MODEL = 'm';
const POD = '10.0.0.7:8000';
const ENTRY = `${POD}@cpu`;

interface Line {
  readonly event: string;
  readonly seq?: number;
  readonly events?: readonly string[];
  readonly keys?: Readonly<Record<string, readonly string[]>>;
  readonly request_keys?: readonly string[];
  readonly decoded?: boolean;
  readonly notes?: readonly string[];
}

/** `check_events.py listen --strict`. */
class Listener {
  readonly process: ChildProcessWithoutNullStreams;
  readonly lines: Line[] = [];
  readonly #waiters = new Set<() => void>();
  readonly #hasReplay: boolean;

  constructor(port: number, replayPort: number | undefined) {
    this.#hasReplay = replayPort !== undefined;
    const replay = replayPort === undefined ? [] : ['--replay', `tcp://127.0.0.1:${replayPort}`];
    this.process = spawn(
      python,
      [
        CHECK_EVENTS ?? '',
        ...['listen', '--strict', '--block-size', String(TOKENS), '--max-seconds', '80'],
        ...['--connect', `tcp://127.0.0.1:${port}`, ...replay],
      ],
      { env: { ...process.env, PYTHONDONTWRITEBYTECODE: '1' } },
    );
    createInterface({ input: this.process.stdout }).on('line', (line) => {
      this.lines.push(JSON.parse(line) as Line);
      for (const wake of this.#waiters) wake();
      this.#waiters.clear();
    });
    running.add(this);
  }

  async until(holds: (lines: readonly Line[]) => boolean): Promise<void> {
    while (!holds(this.lines)) await new Promise<void>((resolve) => this.#waiters.add(resolve));
  }

  async ask(command: object, event: string): Promise<Line> {
    const before = this.lines.length;
    this.process.stdin.write(`${JSON.stringify(command)}\n`);
    let found: Line | undefined;
    await this.until((lines) => {
      found = lines.slice(before).find((line) => line.event === event);
      return found !== undefined;
    });
    return found ?? { event };
  }

  /**
   * Ends the router. A sequence does not say of which numbering it is: one with replay that is a whole numbering behind
   * takes, by its own rules, a batch of an older one for the next of the one it has just had replayed. Parents in it are
   * unknown, until the step back that is still to come; that is no loss here.
   *
   * @returns what was lost
   */
  async stop(): Promise<readonly Line[]> {
    running.delete(this);
    this.process.stdin.write('{"cmd":"stop"}\n');
    // The exit status is 1 when anything was lost.
    const [status] = (await once(this.process, 'close')) as [number];
    const isLoss = (note: string): boolean =>
      !note.startsWith('removed: ') && !(this.#hasReplay && /^stored: parent \d+ is unknown/.test(note));
    const losses = this.lines.filter(
      ({ event, decoded, notes = [] }) =>
        event === 'replay_failed' || decoded === false || notes.some(isLoss),
    );
    const expected = this.#hasReplay ? [0, 1] : [losses.length === 0 ? 0 : 1];
    expect(expected).toContain(status);
    return losses;
  }
}

let python = '';
beforeAll(async () => {
  if (CHECK_EVENTS === undefined) console.warn('no ../shared/conformance/kvevents: no router is run here');
  else python = await kvEventsPython();
  // Python packages come from a registry at the first run.
}, 300_000);

const running = new Set<Listener>();
const peers = new Set<Peer>();
afterEach(async () => {
  for (const listener of running) listener.process.kill('SIGKILL');
  running.clear();
  await Promise.all([...peers].map((peer) => peer.close({ drainMs: 0 })));
  peers.clear();
});

async function startPeer(options: PeerOptions): Promise<Peer> {
  const peer = await Peer.start({
    dataPlane: 'none',
    host: '127.0.0.1',
    port: 0,
    blockBytes: BLOCK_BYTES,
    poolBytes: 128 * BLOCK_BYTES,
    shards: 2,
    logLevel: 'fatal',
    kvEventsModel: MODEL,
    kvEventsPod: POD,
    kvEventsBlockTokens: TOKENS,
    ...options,
  });
  peers.add(peer);
  return peer;
}

/** Prompts that share their first blocks, as conversations do. */
function promptsOf(count: number, blocks: number): number[][] {
  return Array.from({ length: count }, (_, prompt) =>
    Array.from({ length: blocks * TOKENS }, (_, i) =>
      createHash('sha256')
        .update(i < (blocks / 2) * TOKENS ? `shared ${prompt % 3} ${i}` : `${prompt} ${i}`)
        .digest()
        .readUInt32BE(),
    ),
  );
}

interface Prompt {
  readonly tokens: readonly number[];
  readonly keys: Buffer;
}

async function hashed(prompts: readonly (readonly number[])[]): Promise<Prompt[]> {
  const hasher = await BlockHasher.create({ algorithm: 'sha256_cbor', tokensPerHash: TOKENS });
  return prompts.map((tokens) => ({ tokens, keys: hasher.blockKeys(tokens) }));
}

async function store(peer: Peer, { tokens, keys }: Prompt): Promise<void> {
  peer.describe(keys, { tokenIds: tokens, tokensPerBlock: TOKENS });
  await peer.store(keys, new Uint8Array((keys.length / peer.keyBytes) * BLOCK_BYTES));
}

/** Router keys of exactly the blocks that the peer holds. */
async function expectIndexIsResidency(
  listener: Listener,
  peer: Peer,
  prompts: readonly Prompt[],
): Promise<number> {
  const held = new Set<string>();
  for (const { tokens, keys } of prompts) {
    const found = await peer.probe(keys);
    const { request_keys = [] } = await listener.ask({ cmd: 'lookup', model: MODEL, tokens }, 'lookup');
    request_keys.forEach((key, i) => {
      if (found.has(i)) held.add(key);
    });
  }
  // The numbering may just begin again: then everything is gone at the router for a moment.
  const known = async (): Promise<[string, readonly string[]][]> => {
    const { keys = {} } = await listener.ask({ cmd: 'state' }, 'state');
    return Object.entries(keys).toSorted(([a], [b]) => (a < b ? -1 : 1));
  };
  await expect.poll(known).toEqual([...held].toSorted().map((key) => [key, [ENTRY]]));
  return held.size;
}

/** All that the peer has published so far has arrived: seen by a block of its own. */
let markerId = 0;
async function flush(peer: Peer, listeners: readonly Listener[]): Promise<Prompt> {
  const [marker] = await hashed([Array.from({ length: TOKENS }, (_, i) => 0xf000_0000 + 100 * markerId + i)]);
  markerId += 1;
  await store(peer, marker);
  for (const listener of listeners) {
    for (;;) {
      const { request_keys = [] } = await listener.ask(
        { cmd: 'lookup', model: MODEL, tokens: marker.tokens },
        'lookup',
      );
      const { keys = {} } = await listener.ask({ cmd: 'state' }, 'state');
      if (request_keys.every((key) => key in keys)) break;
    }
  }
  return marker;
}

describe.skipIf(CHECK_EVENTS === undefined).each([{ hasReplay: true }, { hasReplay: false }])(
  'with replay: $hasReplay',
  ({ hasReplay }) => {
    const replayOf = (port: number): number | 'off' => (hasReplay ? port : 'off');

    it('nothing is lost through stores, evictions, a restart of the numbering, of the peer, and a late subscriber', async () => {
      const [port, replayPort] = [await freePort(), await freePort()];
      const options = {
        kvEventsPort: port,
        kvEventsReplayPort: replayOf(replayPort),
        kvEventsBufferBatches: 40,
        kvEventsSettleMs: 1500,
        kvEventsResubscribeMs: 100,
      } as const satisfies PeerOptions;
      const prompts = await hashed(promptsOf(60, 12));
      const peer = await startPeer(options);
      const early = new Listener(port, hasReplay ? replayPort : undefined);
      await early.until((lines) => lines.some(({ event, seq }) => event === 'message' && seq === 0));

      // 60 prompts of 12 blocks in 128 slots: most are evicted again, and the numbering reaches its bound.
      for (const prompt of prompts) await store(peer, prompt);
      const gone = prompts[prompts.length - 1].keys.subarray(0, 4 * peer.keyBytes);
      expect(await peer.evict(gone)).toBe(4);
      const marker = await flush(peer, [early]);
      expect(peer.stats().evictions).toBeGreaterThan(100);
      expect(await expectIndexIsResidency(early, peer, [...prompts, marker])).toBeGreaterThan(100);
      expect(early.lines.filter(({ event }) => event === 'message').length).toBeGreaterThan(50);

      // A subscriber that joins late has the same.
      const late = new Listener(port, hasReplay ? replayPort : undefined);
      await late.until((lines) => lines.some(({ events }) => events?.includes('Stored') === true));
      const second = await flush(peer, [early, late]);
      expect(await expectIndexIsResidency(late, peer, [...prompts, marker, second])).toBeGreaterThan(100);

      // Another process at the same address: both forget what the first had.
      peers.delete(peer);
      await peer.close({ drainMs: 0 });
      const successor = await startPeer(options);
      for (const prompt of prompts.slice(0, 5)) await store(successor, prompt);
      const third = await flush(successor, [early, late]);
      const left = await expectIndexIsResidency(early, successor, [...prompts, marker, second, third]);
      expect(left).toBeLessThanOrEqual(successor.numBlocks);
      expect(await expectIndexIsResidency(late, successor, [...prompts, marker, second, third])).toBe(left);

      expect([await early.stop(), await late.stop()]).toEqual([[], []]);
    });
  },
);

describe.skipIf(CHECK_EVENTS === undefined)('with replay offered', () => {
  it('routers with and without it, one of which stands still for a while, both know what is here through renumberings', async () => {
    const [port, replayPort] = [await freePort(), await freePort()];
    const peer = await startPeer({
      kvEventsPort: port,
      kvEventsReplayPort: replayPort,
      kvEventsBufferBatches: 16,
      kvEventsSettleMs: 60_000,
      kvEventsResubscribeMs: 300,
    });
    const prompts = await hashed(promptsOf(240, 12));
    await store(peer, prompts[0]);
    const listeners = [new Listener(port, replayPort), new Listener(port, undefined)];
    // The second hears of what was there before it only when the numbering begins again.
    for (const listener of listeners) {
      await listener.until((lines) => lines.some(({ events }) => events?.includes('Stored') === true));
    }
    for (const [i, prompt] of prompts.entries()) {
      if (i === 60) listeners[0].process.kill('SIGSTOP');
      if (i === 180) listeners[0].process.kill('SIGCONT');
      await store(peer, prompt);
      if (i % 5 === 0) await peer.evict(prompt.keys.subarray(0, 3 * peer.keyBytes));
    }
    const marker = await flush(peer, listeners);
    const metrics = await peer.metrics.metrics();
    expect(Number(/kvpeer_kv_events_restarts_total (\d+)/.exec(metrics)?.[1])).toBeGreaterThan(3);
    const known = [...prompts, marker];
    const held = await expectIndexIsResidency(listeners[0], peer, known);
    expect(held).toBeGreaterThan(100);
    expect(await expectIndexIsResidency(listeners[1], peer, known)).toBe(held);
    expect(await Promise.all(listeners.map((listener) => listener.stop()))).toEqual([[], []]);
  });
});
