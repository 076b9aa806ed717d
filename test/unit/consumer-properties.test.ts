// Random histories: whatever happens in whatever order, every call has one result, rounds only grow, slots and pins all
// come back, and no slot is used again while somebody may still write to it.

import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { Outcome } from '../../src/shared/operations.js';
import type { FetchMessage } from '../../src/main/protocol/messages.js';
import { scan } from '../../src/main/protocol/scan.js';
import type { LoadResult } from '../../src/main/session/roles.js';
import { ConsumerNode } from '../fixtures/consumer-harness.js';
import type { ConsumerHarness } from '../fixtures/consumer-harness.js';
import type { SlotSet } from '../../src/main/shards/shard-client.js';
import type { FakeServe } from '../fixtures/fake-shards.js';
import type { FakeNode } from '../fixtures/session-network.js';
import { FakeNetwork, keysOf, packedKeys } from '../fixtures/session-network.js';

const IDS = ['r', 's', 't'];
const KEY_COUNT = 8;

const keys = fc.array(fc.nat(KEY_COUNT - 1), { minLength: 1, maxLength: 4 });
const id = fc.constantFrom(...IDS);
const round = fc.nat(4);

type Step =
  | { readonly do: 'lookup' | 'load' | 'prepare'; readonly id: string; readonly keys: number[] }
  | {
      readonly do: 'answer';
      readonly id: string;
      readonly keys: number[];
      readonly hits: number;
      readonly round: number;
      readonly hasRound: boolean;
    }
  | { readonly do: 'done' | 'failed' | 'ack'; readonly id: string; readonly round: number }
  /** `written` is a bitmap of up to eight keys, right or wrong. */
  | { readonly do: 'doneInPart'; readonly id: string; readonly round: number; readonly written: number }
  | { readonly do: 'finish' | 'giveUp'; readonly id: string }
  | { readonly do: 'wait'; readonly ms: number }
  | { readonly do: 'hold' | 'resume'; readonly operation: 'match' | 'reserve' | 'publish' | 'abandon' }
  | { readonly do: 'fail'; readonly operation: 'match' | 'reserve' | 'publish' }
  | { readonly do: 'foreign'; readonly keys: number[] }
  | { readonly do: 'foreignEnds'; readonly isPublished: boolean }
  | { readonly do: 'proceed' | 'end' | 'acknowledge' | 'settle' | 'recycle' };

const step: fc.Arbitrary<Step> = fc.oneof(
  { weight: 6, arbitrary: fc.record({ do: fc.constantFrom('lookup', 'load', 'prepare'), id, keys }) },
  {
    weight: 5,
    arbitrary: fc.record({
      do: fc.constant('answer'),
      id,
      keys,
      hits: fc.nat(15),
      round,
      hasRound: fc.boolean(),
    }),
  },
  { weight: 6, arbitrary: fc.record({ do: fc.constantFrom('done', 'failed', 'ack'), id, round }) },
  {
    weight: 4,
    arbitrary: fc.record({
      do: fc.constant('doneInPart'),
      id,
      round,
      written: fc.constantFrom(0, 1, 2, 3, 5, 255),
    }),
  },
  { weight: 2, arbitrary: fc.record({ do: fc.constantFrom('finish', 'giveUp'), id }) },
  {
    weight: 3,
    arbitrary: fc.record({
      do: fc.constant('wait'),
      ms: fc.constantFrom(1, 1_000, 8_000, 10_000, 31_000, 61_000),
    }),
  },
  {
    weight: 2,
    arbitrary: fc.record({
      do: fc.constantFrom('hold', 'resume'),
      operation: fc.constantFrom('match', 'reserve', 'publish', 'abandon'),
    }),
  },
  {
    weight: 1,
    arbitrary: fc.record({
      do: fc.constant('fail'),
      operation: fc.constantFrom('match', 'reserve', 'publish'),
    }),
  },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('foreign'), keys }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('foreignEnds'), isPublished: fc.boolean() }) },
  { weight: 8, arbitrary: fc.record({ do: fc.constantFrom('settle', 'settle', 'acknowledge') }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constantFrom('proceed', 'end', 'recycle') }) },
);

/** Runs a history against one consumer after another (a new session begins when one ends). */
class History {
  readonly node = new ConsumerNode({ numBlocks: 5 });
  peer: ConsumerHarness;
  readonly isKvpeer: boolean;
  readonly counts: number[] = [];
  readonly loaded: LoadResult[] = [];
  readonly prepared: (() => void)[] = [];
  readonly foreign: SlotSet[] = [];
  /** Highest round that was sent for an id. */
  readonly rounds = new Map<string, number>();
  /** Fetches that left, on this session or an earlier one, and may still be written. */
  readonly fetches: { readonly peer: ConsumerHarness; readonly message: FetchMessage }[] = [];

  constructor(isKvpeer: boolean) {
    this.isKvpeer = isKvpeer;
    this.peer = this.#dial();
  }

  /** A session begins without the peer's acknowledgement. */
  #dial(): ConsumerHarness {
    const peer = this.node.session({
      isKvpeer: this.isKvpeer,
      ...(this.isKvpeer ? { features: ['lookup_seq', 'partial_fetch', 'speculative_fetch'] } : {}),
    });
    peer.isAcknowledged = false;
    return peer;
  }

  /** Each call remembers how often it was answered. */
  #call(): () => void {
    const at = this.counts.push(0) - 1;
    return () => {
      this.counts[at] += 1;
    };
  }

  run(event: Step): void {
    const { node, peer } = this;
    switch (event.do) {
      case 'lookup':
        peer.consumer.lookup(event.id, packedKeys(keysOf(...event.keys)), this.#call());
        break;
      case 'load':
      case 'prepare': {
        const answered = this.#call();
        const ifHeld = this.isKvpeer && event.keys.length > 1;
        const options =
          event.do === 'prepare'
            ? {
                ifHeld,
                beforeFetch: (_set: unknown, proceed: () => void): void => void this.prepared.push(proceed),
              }
            : { ifHeld };
        peer.consumer.load(event.id, packedKeys(keysOf(...event.keys)), options, (result) => {
          answered();
          this.loaded.push(result);
        });
        break;
      }
      case 'answer': {
        const hits = event.keys.map((_key, i) => ((event.hits >> i) & 1).toString()).join('');
        peer.answer(event.id, event.hasRound ? event.round : undefined, event.keys, hits);
        break;
      }
      case 'done':
      case 'failed':
        this.#roundEnds(event.id, event.round);
        peer.done(event.id, event.round, event.do === 'done');
        break;
      case 'doneInPart':
        this.#roundEnds(event.id, event.round);
        peer.donePartly(event.id, event.round, Uint8Array.of(event.written));
        break;
      case 'ack':
        this.#roundEnds(event.id, event.round);
        peer.abortAck(event.id, event.round);
        break;
      case 'finish':
        peer.consumer.finish(event.id);
        break;
      case 'giveUp':
        peer.consumer.giveUpRound(event.id);
        break;
      case 'wait':
        node.advance(event.ms);
        break;
      case 'hold':
        node.shards.hold(event.operation);
        break;
      case 'resume':
        node.shards.resume(event.operation);
        break;
      case 'fail':
        node.shards.failNext(event.operation, { code: 'KVPEER_WORKER_LOST' });
        break;
      case 'foreign':
        node.shards.reserve(packedKeys(keysOf(...event.keys)), (_failure, set) => {
          if (set) this.foreign.push(set);
        });
        break;
      case 'foreignEnds': {
        const set = this.foreign.shift();
        if (set) this.#endForeign(set, event.isPublished);
        break;
      }
      case 'proceed':
        this.prepared.shift()?.();
        break;
      case 'acknowledge':
        peer.acknowledge();
        break;
      case 'recycle':
      case 'end':
        peer.end();
        this.#checkSent();
        if (event.do === 'recycle') {
          this.fetches.splice(0);
          node.quarantine.onRecycled();
        }
        this.peer = this.#dial();
        break;
      case 'settle':
        node.shards.settle();
        break;
    }
    this.#checkSent();
  }

  #endForeign(set: SlotSet, isPublished: boolean): void {
    const { shards } = this.node;
    const abandon = (): void => {
      shards.abandon(set, { quarantine: false }, ignore);
    };
    if (!isPublished) abandon();
    else {
      shards.publish(set, { keepPins: false }, (failure) => {
        if (failure) abandon();
      });
    }
  }

  #roundEnds(kvRequestId: string, roundSeq: number): void {
    const at = this.fetches.findIndex(
      ({ peer, message }) =>
        peer === this.peer && message.kvRequestId === kvRequestId && message.roundSeq === roundSeq,
    );
    if (at >= 0) this.fetches.splice(at, 1);
  }

  /** Rounds never go back, a round is fetched once, and what may be written is in nobody's use. */
  #checkSent(): void {
    const { shards } = this.node;
    for (const frame of this.peer.frames.splice(0)) {
      const message = scan(frame);
      if (message.type === 'fetch' && message.keys.count > 0) this.fetches.push({ peer: this.peer, message });
      if (message.type !== 'lookup' && message.type !== 'fetch') continue;
      const { kvRequestId, roundSeq } = message;
      const highest = this.rounds.get(kvRequestId) ?? 0;
      expect(roundSeq).toBeGreaterThanOrEqual(highest);
      this.rounds.set(kvRequestId, message.type === 'fetch' ? roundSeq + 1 : roundSeq);
    }
    for (const { message } of this.fetches) {
      for (const slot of message.blockIndexes)
        expect(['writing', 'quarantined']).toContain(shards.phaseOf(slot));
    }
  }

  /** Everything comes to its end: no call is left, nothing is held. */
  close(): void {
    const { node } = this;
    for (const operation of ['match', 'reserve', 'publish', 'abandon'] as const)
      node.shards.resume(operation);
    node.shards.settle();
    for (const proceed of this.prepared) proceed();
    node.shards.settle();
    this.peer.end();
    node.advance(100_000);
    for (const set of this.foreign.splice(0)) this.#endForeign(set, true);
    node.shards.settle();
    node.quarantine.onRecycled();
    node.shards.settle();
    for (const { pins } of this.loaded) for (const set of pins) node.shards.release(set);
    expect(this.counts.filter((count) => count !== 1)).toEqual([]);
    expect(node.totals).toMatchObject({ pins: 0, openSets: 0, writing: 0, quarantined: 0, waiting: 0 });
    expect(node.joins.waitingCount).toBe(0);
    for (const { consumer } of node.peers) {
      expect(consumer.stats()).toEqual({ idCount: 0, openLookupCount: 0, openLoadCount: 0 });
    }
  }
}

describe('a consumer', () => {
  it('gives one result per call, loses no slot and no pin, and never reuses a round', () => {
    fc.assert(
      fc.property(fc.boolean(), fc.array(step, { maxLength: 40 }), (isKvpeer, steps) => {
        const history = new History(isKvpeer);
        for (const event of steps) history.run(event);
        history.close();
      }),
      { numRuns: 500 },
    );
  });
});

type PairStep =
  | { readonly do: 'lookup' | 'load'; readonly from: number; readonly id: string; readonly keys: number[] }
  | { readonly do: 'finish' | 'giveUp'; readonly from: number; readonly id: string }
  | { readonly do: 'serveEnds'; readonly from: number; readonly outcome: Outcome }
  | {
      readonly do: 'sessionEnds' | 'peerGone' | 'restart' | 'recycle' | 'store';
      readonly from: number;
      readonly key: number;
    }
  | { readonly do: 'wait'; readonly ms: number };

const from = fc.nat(1);
const pairStep: fc.Arbitrary<PairStep> = fc.oneof(
  { weight: 6, arbitrary: fc.record({ do: fc.constantFrom('lookup', 'load'), from, id, keys }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constantFrom('finish', 'giveUp'), from, id }) },
  {
    weight: 4,
    arbitrary: fc.record({
      do: fc.constant('serveEnds'),
      from,
      outcome: fc.constantFrom(Outcome.Ok, Outcome.WriteFailed),
    }),
  },
  {
    weight: 3,
    arbitrary: fc.record({
      do: fc.constantFrom('sessionEnds', 'peerGone', 'restart', 'recycle', 'store', 'store'),
      from,
      key: fc.nat(KEY_COUNT - 1),
    }),
  },
  {
    weight: 2,
    arbitrary: fc.record({ do: fc.constant('wait'), ms: fc.constantFrom(100, 3_000, 8_000, 31_000) }),
  },
);

const ABILITIES = ['plain', 'basic', 'parts'] as const;
type Ability = (typeof ABILITIES)[number];
const BASIC_FEATURES = ['round_seq', 'ttl_ms', 'lookup_seq'] as const;

const ADDRESSES = ['10.0.0.1:1', '10.0.0.2:1'];

/** Two nodes that store, look up and load at each other, with writes that end when the history says so. */
class PairHistory {
  readonly network = new FakeNetwork();
  readonly nodes: FakeNode[];
  readonly abilities: readonly Ability[];
  readonly counts: number[] = [];
  readonly loaded: { readonly node: FakeNode; readonly result: LoadResult }[] = [];

  constructor(abilities: readonly Ability[]) {
    this.abilities = abilities;
    this.nodes = [this.#start(0), this.#start(1)];
  }

  #start(at: number): FakeNode {
    const node = this.network.node(ADDRESSES[at], {
      numBlocks: 8,
      servesEnd: false,
      isKvpeer: this.abilities[at] !== 'plain',
      features: [
        ...BASIC_FEATURES,
        ...(this.abilities[at] === 'parts' ? (['partial_fetch', 'speculative_fetch'] as const) : []),
      ],
      limits: { peerPinShare: 0.5 },
    });
    node.put(...(at === 0 ? [0, 1, 2] : [3, 4, 5]));
    return node;
  }

  async run(event: PairStep): Promise<void> {
    const { network, nodes } = this;
    switch (event.do) {
      case 'lookup':
      case 'load':
        this.#ask(event.do, nodes[event.from], ADDRESSES[1 - event.from], event.id, event.keys);
        break;
      case 'finish':
        nodes[event.from].sessions.find(ADDRESSES[1 - event.from])?.consumer.finish(event.id);
        break;
      case 'giveUp':
        nodes[event.from].sessions.find(ADDRESSES[1 - event.from])?.consumer.giveUpRound(event.id);
        break;
      case 'serveEnds':
        this.#endServe(nodes[event.from].serves.at(0), event.outcome);
        break;
      case 'sessionEnds':
        nodes[event.from].sessions.find(ADDRESSES[1 - event.from])?.end('protocol-error');
        break;
      case 'peerGone':
        nodes[event.from].sessions.onPeerGone(ADDRESSES[1 - event.from]);
        break;
      case 'restart':
        network.kill(nodes[event.from]);
        nodes[event.from] = this.#start(event.from);
        break;
      case 'recycle':
        await this.#recycle(nodes[event.from]);
        break;
      case 'store': {
        const { shards } = nodes[event.from];
        if (shards.totals().free > 0 && shards.slotOf(keysOf(event.key)) < 0)
          nodes[event.from].put(event.key);
        break;
      }
      case 'wait':
        await network.advance(event.ms);
        break;
    }
    await network.settle();
    this.checkWrites();
  }

  #ask(what: 'lookup' | 'load', node: FakeNode, to: string, requestId: string, wanted: number[]): void {
    node.sessions.acquire(to, (session) => {
      if (typeof session === 'string' || !this.nodes.includes(node)) return;
      const at = this.counts.push(0) - 1;
      const span = packedKeys(keysOf(...wanted));
      if (what === 'lookup') {
        session.consumer.lookup(requestId, span, () => {
          this.counts[at] += 1;
        });
        return;
      }
      const ifHeld = session.remote?.features.has('speculative_fetch') === true;
      session.consumer.load(requestId, span, { ifHeld }, (result) => {
        this.counts[at] += 1;
        this.loaded.push({ node, result });
        // What is given out was stored here, or written by the other.
        for (const slot of result.slots) if (slot >= 0) expect(node.shards.contentOf(slot)).toBe('filled');
      });
    });
  }

  async #recycle(node: FakeNode): Promise<void> {
    let isEmpty = false;
    node.sessions.pause('recycling', () => {
      isEmpty = true;
    });
    await this.network.advance(6_000);
    expect(isEmpty).toBe(true);
    node.quarantine.onRecycled();
    node.sessions.resume();
  }

  /** A write that ends well has brought its blocks. */
  #endServe(serve: FakeServe | undefined, outcome: Outcome): void {
    if (serve === undefined) return;
    const producer = this.nodes.find((node) => node.serves.includes(serve));
    const consumer = producer && this.#targetOf(producer, serve);
    if (outcome === Outcome.Ok && consumer !== undefined) {
      for (const slot of serve.destinations) consumer.shards.setContent(slot, 'filled');
    }
    serve.end(outcome);
  }

  #targetOf(producer: FakeNode, { request }: FakeServe): FakeNode | undefined {
    const metadata = Buffer.from(
      producer.shards.peers.get(request.peer.peerId)?.agentMetadata ?? [],
    ).toString();
    return this.nodes.find((node) => metadata === `${node.address} ${node.incarnationId}`);
  }

  /** A write that may still land has its destination in nobody's hands but its load's or the quarantine's. */
  checkWrites(): void {
    for (const producer of this.nodes) {
      for (const serve of producer.serves) {
        const consumer = this.#targetOf(producer, serve);
        if (!consumer) continue;
        for (const slot of serve.request.indexes) {
          expect(['writing', 'quarantined']).toContain(consumer.shards.phaseOf(slot));
        }
      }
    }
  }

  async close(): Promise<void> {
    const { network } = this;
    for (const node of this.nodes) for (const serve of [...node.serves]) this.#endServe(serve, Outcome.Ok);
    await network.settle();
    this.checkWrites();
    for (const node of this.nodes) node.sessions.pause('closed', ignore);
    await network.advance(120_000);
    for (const node of this.nodes) {
      node.quarantine.onRecycled();
      await network.settle();
      for (const { node: owner, result } of this.loaded) {
        if (owner === node) for (const set of result.pins) node.shards.release(set);
      }
      expect(node.sessions.countByPhase()).toMatchObject({ ready: 0, draining: 0 });
      expect(node.shards.totals()).toMatchObject({
        pins: 0,
        openSets: 0,
        writing: 0,
        quarantined: 0,
        waiting: 0,
      });
      expect(node.shards.peers.size).toBe(0);
      expect(node.budget.total).toBe(0);
    }
  }
}

describe('two nodes', () => {
  it('never use a slot again while a write of the other may land, and lose nothing', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.tuple(fc.constantFrom(...ABILITIES), fc.constantFrom(...ABILITIES)),
        fc.array(pairStep, { maxLength: 30 }),
        async (abilities, steps) => {
          const history = new PairHistory(abilities);
          for (const event of steps) await history.run(event);
          await history.close();
          expect(history.counts.filter((count) => count > 1)).toEqual([]);
        },
      ),
      { numRuns: 150 },
    );
  });
});

function ignore(): void {
  // Nobody asks.
}
