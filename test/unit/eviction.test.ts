// Which block goes: the two queues against a model made of arrays, the history, and what both bring to lists of blocks.

import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { PositionStatus } from '../../src/shared/operations.js';
import { Phase, packState, pinsOf, visitedOf } from '../../src/shared/slot-state.js';
import { EvictionHistory, Queue, TICKS_PER_TURNOVER } from '../../src/workers/eviction-history.js';
import { ReusePolicy } from '../../src/workers/eviction.js';
import { ControlMemory } from '../fixtures/control-memory.js';

const SLOTS = 12;
const PLENTY = { left: 1_000_000 };

/** A policy on slots whose states the test sets by hand. */
class Harness {
  readonly node = new ControlMemory({ numBlocks: SLOTS });
  readonly history = new EvictionHistory(this.node.control, this.node.layout, 0);
  readonly policy = new ReusePolicy(this.node.table, this.history, 0, SLOTS);

  set(slot: number, phase: Phase, visited = 0, pins = 0): void {
    this.node.table.words[this.node.table.stateWord(slot)] = packState(phase, 0, visited, pins);
  }

  admit(slot: number, isKnown = false): void {
    this.policy.admit(slot, slot * 8, isKnown, false);
    this.set(slot, Phase.Ready);
  }

  evict(): number {
    const slot = this.policy.propose({ ...PLENTY });
    if (slot >= 0) {
      this.set(slot, Phase.Free);
      this.policy.left(slot, slot * 8);
    }
    return slot;
  }
}

type Step =
  | { kind: 'admit'; slot: number; isKnown: boolean }
  | { kind: 'use' | 'pin' | 'unpin' | 'take'; slot: number }
  | { kind: 'evict' };

const slot = fc.nat(SLOTS - 1);
const step: fc.Arbitrary<Step> = fc.oneof(
  { weight: 6, arbitrary: fc.record({ kind: fc.constant('admit' as const), slot, isKnown: fc.boolean() }) },
  {
    weight: 4,
    arbitrary: fc.record({ kind: fc.constantFrom('use' as const, 'pin', 'unpin', 'take'), slot }),
  },
  { weight: 4, arbitrary: fc.constant({ kind: 'evict' as const }) },
);

interface Block {
  queue: Queue;
  tick: number;
}

/** The same policy, in arrays: what is at the front of each queue, and in which order. */
class Model {
  readonly queues: [number[], number[]] = [[], []];
  readonly blocks = new Map<number, Block>();
  readonly moved = new Set<number>();

  constructor(private readonly harness: Harness) {}

  admit(slot: number, isKnown: boolean): void {
    const queue = isKnown ? Queue.Regulars : Queue.Newcomers;
    this.blocks.set(slot, { queue, tick: this.harness.history.tick });
    if (this.queues.some((list) => list.includes(slot))) this.moved.add(slot);
    else this.queues[queue].push(slot);
  }

  propose(): number {
    let fallback = -1;
    const candidates = this.queues.map((list) => {
      for (let looks = 0; looks <= 2 * SLOTS; looks += 1) {
        if (list.length === 0) return -1;
        const [slot] = list;
        const state = this.harness.node.table.state(slot);
        const block = this.blocks.get(slot);
        const isThere = block !== undefined;
        const isVisited = visitedOf(state) > 0;
        if (isThere && !isVisited && pinsOf(state) === 0 && !this.moved.has(slot)) return slot;
        list.shift();
        this.moved.delete(slot);
        if (!isThere) continue;
        if (isVisited) {
          block.queue = Queue.Regulars;
          block.tick = this.harness.history.tick;
          if (pinsOf(state) === 0) {
            fallback = slot;
            this.harness.set(slot, Phase.Ready);
          }
        }
        this.queues[block.queue].push(slot);
      }
      return -1;
    });
    const there = candidates.filter((slot) => slot >= 0);
    if (there.length < 2) return there[0] ?? fallback;
    return this.rate(there[0]) <= this.rate(there[1]) ? there[0] : there[1];
  }

  left(slot: number): void {
    this.blocks.delete(slot);
    for (const list of this.queues) if (list[0] === slot) list.shift();
  }

  private rate(slot: number): number {
    const block = this.blocks.get(slot);
    if (!block) throw new Error(`slot ${slot} has no block`);
    return this.harness.history.rateOf(block.queue, this.harness.history.tick - block.tick);
  }
}

describe('the two queues', () => {
  it('propose what a model of arrays proposes, after any history of uses, pins and evictions', () => {
    fc.assert(
      fc.property(fc.array(step, { maxLength: 120 }), (steps) => {
        const real = new Harness();
        const twin = new Harness();
        const model = new Model(twin);
        for (const s of steps) {
          if (s.kind === 'evict') {
            const proposed = real.evict();
            const expected = model.propose();
            expect(proposed).toBe(expected);
            if (proposed < 0) continue;
            model.left(proposed);
            twin.set(proposed, Phase.Free);
            twin.history.remember(proposed * 8, Queue.Newcomers, false, 0);
            continue;
          }
          const state = real.node.table.state(s.slot);
          const isHere = model.blocks.has(s.slot);
          const pins = pinsOf(state);
          switch (s.kind) {
            case 'admit':
              if (isHere) break;
              real.admit(s.slot, s.isKnown);
              twin.history.advance();
              model.admit(s.slot, s.isKnown);
              twin.set(s.slot, Phase.Ready);
              break;
            case 'use':
            case 'pin':
              if (!isHere || pins > 0) break;
              for (const side of [real, twin])
                side.set(s.slot, Phase.Ready, 1, s.kind === 'pin' ? pins + 1 : pins);
              break;
            case 'unpin':
              if (pins === 0) break;
              for (const side of [real, twin]) side.set(s.slot, Phase.Ready, visitedOf(state), pins - 1);
              break;
            case 'take':
              // Evicted for another reason than room: wherever it is in its queue.
              if (!isHere || pins > 0) break;
              for (const side of [real, twin]) side.set(s.slot, Phase.Free);
              real.policy.left(s.slot, undefined);
              model.left(s.slot);
              break;
          }
        }
      }),
      { numRuns: 300 },
    );
  });

  it('find nothing, in bounded time, when every block is pinned', () => {
    const { policy, ...harness } = new Harness();
    const { node } = harness;
    for (let i = 0; i < SLOTS; i += 1) {
      policy.admit(i, i, false, false);
      node.table.words[node.table.stateWord(i)] = packState(Phase.Ready, 0, 1, 1);
    }
    const budget = { left: 1_000_000 };
    expect(policy.propose(budget)).toBe(-1);
    expect(1_000_000 - budget.left).toBeLessThanOrEqual(2 * SLOTS);
    node.table.words[node.table.stateWord(5)] = packState(Phase.Ready, 0, 0, 0);
    expect(policy.propose({ ...PLENTY })).toBe(5);
  });

  it('are made anew from the records, regulars as regulars', () => {
    const harness = new Harness();
    for (let i = 0; i < 4; i += 1) harness.admit(i, i < 2);
    const { policy } = harness;
    policy.clear();
    expect(policy.propose({ ...PLENTY })).toBe(-1);
    for (let i = SLOTS - 1; i >= 0; i -= 1) {
      if (i < 4) policy.adopt(i);
      else policy.forget(i);
    }
    expect([harness.evict(), harness.evict(), harness.evict(), harness.evict()]).toEqual([3, 2, 1, 0]);
  });
});

describe('the history of a shard', () => {
  const memory = (): ControlMemory => new ControlMemory({ numBlocks: 4096, shardCount: 2 });

  it('knows a traced block, and the last block of a list, after they were evicted, from every shard', () => {
    const { control, layout } = memory();
    const [first, second] = [0, 1].map((shard) => new EvictionHistory(control, layout, shard));
    expect(first.recall(0, 4)).toBe('unknown');
    first.remember(4, Queue.Newcomers, false, 0);
    first.remember(7, Queue.Newcomers, true, 0);
    for (const history of [first, second]) {
      expect(history.recall(0, 4)).toBe('known');
      expect(history.recall(0, 7)).toBe('tail');
      expect(history.recall(1, 4)).toBe('unknown');
    }
  });

  it('takes few keys for others', () => {
    const { control, layout } = memory();
    const history = new EvictionHistory(control, layout, 0);
    const tagOf = (i: number): number => Math.imul(i, 0x9e3779b1) & ~3;
    for (let i = 0; i < 4000; i += 1) history.remember(tagOf(i), Queue.Newcomers, false, 0);
    let wrong = 0;
    for (let i = 10_000; i < 20_000; i += 1) if (history.recall(0, tagOf(i)) !== 'unknown') wrong += 1;
    expect(wrong).toBeLessThan(100);
  });

  it('expects more of regulars than of newcomers before it has seen anything, and less the longer nobody came', () => {
    const { control, layout } = memory();
    const history = new EvictionHistory(control, layout, 0);
    const ages = [0, 1, 2, 4, 8, 16].map((turnovers) => turnovers * TICKS_PER_TURNOVER);
    for (const queue of [Queue.Newcomers, Queue.Regulars]) {
      const rates = ages.map((age) => history.rateOf(queue, age));
      expect(rates).toEqual([...rates].sort((a, b) => b - a));
    }
    for (const age of ages) {
      expect(history.rateOf(Queue.Regulars, age)).toBeGreaterThan(history.rateOf(Queue.Newcomers, age));
    }
  });

  it('learns from uses and returns that newcomers are worth more than regulars where that is so', () => {
    const { control, layout } = memory();
    const [own, other] = [0, 1].map((shard) => new EvictionHistory(control, layout, shard));
    for (let round = 0; round < 3; round += 1) {
      for (let i = 0; i < 2048; i += 1) {
        const tag = 4 * (round * 2048 + i);
        own.advance();
        own.remember(tag, i % 2 === 0 ? Queue.Newcomers : Queue.Regulars, false, own.tick);
        if (i % 2 === 0) own.noteReturn(tag);
      }
    }
    expect(own.rateOf(Queue.Newcomers, 0)).toBeGreaterThan(own.rateOf(Queue.Regulars, 0));
    // The other shard believes the same once it has looked.
    for (let i = 0; i < 600; i += 1) other.advance();
    expect(other.rateOf(Queue.Newcomers, 0)).toBeGreaterThan(other.rateOf(Queue.Regulars, 0));
  });
});

describe('lists of blocks in a small pool', () => {
  /** A request: its leading hits, the rest is stored. */
  function request(
    node: ControlMemory,
    owners: readonly ReturnType<ControlMemory['owner']>[],
    ids: readonly number[],
  ): number {
    const extent = node.extent(ids);
    owners.forEach((owner, shard) => {
      node.match(extent, shard);
      owner.reserve(extent, 0);
    });
    for (const owner of owners) owner.publish(extent, true);
    const statuses = node.statuses(extent);
    node.release(extent);
    return statuses.filter((status) => status === PositionStatus.Pinned).length;
  }

  const chain = (name: number, length: number): number[] => Array.from({ length }, (_, i) => name * 1000 + i);

  function leadingCount(node: ControlMemory, shardCount: number, ids: readonly number[]): number {
    const extent = node.extent(ids);
    for (let shard = 0; shard < shardCount; shard += 1) node.match(extent, shard);
    const statuses = node.statuses(extent);
    node.release(extent);
    const firstMiss = statuses.findIndex((status) => status !== PositionStatus.Pinned);
    return firstMiss < 0 ? ids.length : firstMiss;
  }

  it('keep what is asked for again and again while twenty pools of other blocks pass by once', () => {
    const node = new ControlMemory({ numBlocks: 256, shardCount: 2 });
    const owners = [node.owner(0), node.owner(1)];
    const favourites = [1, 2, 3].map((name) => chain(name, 20));
    let kept = 0;
    let asked = 0;
    for (let round = 0; round < 60; round += 1) {
      // Longer than a pool between two uses of a favourite: least recently used would lose every one of them.
      for (let i = 0; i < 16; i += 1) request(node, owners, chain(100 + round * 16 + i, 20));
      const favourite = favourites[round % favourites.length];
      if (round >= 30) {
        kept += leadingCount(node, 2, favourite);
        asked += favourite.length;
      }
      request(node, owners, favourite);
    }
    expect(kept / asked).toBeGreaterThan(0.5);
  });

  it('lose a chain from its end', () => {
    const node = new ControlMemory({ numBlocks: 64 });
    const owners = [node.owner(0)];
    request(node, owners, chain(1, 32));
    request(node, owners, chain(2, 32));
    request(node, owners, chain(3, 10));
    expect(leadingCount(node, 1, chain(1, 32))).toBe(22);
    expect(leadingCount(node, 1, chain(2, 32))).toBe(32);
  });
});
