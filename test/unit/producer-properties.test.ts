// Whatever peers, the local engine and the clock do, in any order: no pin is lost, every lookup and fetch has one end.

import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { Outcome } from '../../src/shared/operations.js';
import type { FakeOperation } from '../fixtures/fake-shards.js';
import type { SlotSet } from '../../src/main/shards/shard-client.js';
import { fetchMessage, keysOf, lookupMessage, NodeHarness } from '../fixtures/producer-harness.js';

const ids = fc.constantFrom('a', 'b', 'pd');
const rounds = fc.nat(2);
const peers = fc.nat(1);
const keys = fc.array(fc.nat(11), { minLength: 1, maxLength: 6 });
const operations = fc.constantFrom<FakeOperation>('match', 'hardStop');

const command = fc.oneof(
  fc.record({
    type: fc.constant('lookup' as const),
    peer: peers,
    id: ids,
    round: rounds,
    keys,
    ttlMs: fc.constantFrom(undefined, 500, 8_000),
  }),
  fc.record({
    type: fc.constant('fetch' as const),
    peer: peers,
    id: ids,
    round: rounds,
    keys,
    ttlMs: fc.constantFrom(undefined, 500),
    ifHeld: fc.boolean(),
  }),
  fc.record({ type: fc.constant('finish' as const), peer: peers, id: ids }),
  fc.record({ type: fc.constant('abort' as const), peer: peers, id: ids, round: rounds }),
  fc.record({ type: fc.constant('store' as const), keys }),
  fc.record({ type: fc.constant('settleStore' as const), isPublished: fc.boolean() }),
  fc.record({ type: fc.constant('storeForDecoder' as const), keys }),
  fc.record({ type: fc.constant('openDecoder' as const) }),
  fc.record({ type: fc.constant('finishDecoder' as const) }),
  fc.record({ type: fc.constant('hold' as const), operation: operations }),
  fc.record({ type: fc.constant('resume' as const), operation: operations }),
  fc.record({
    type: fc.constant('fail' as const),
    operation: fc.constantFrom<FakeOperation>('match', 'serve', 'hardStop'),
  }),
  fc.record({ type: fc.constant('settle' as const) }),
  fc.record({
    type: fc.constant('endServe' as const),
    outcome: fc.constantFrom(Outcome.Ok, Outcome.Cancelled, Outcome.WriteFailed),
  }),
  fc.record({ type: fc.constant('drainSockets' as const), peer: peers }),
  fc.record({ type: fc.constant('advance' as const), ms: fc.constantFrom(1, 100, 5_000, 26_000, 61_000) }),
  fc.record({ type: fc.constant('end' as const), peer: peers }),
);
type Command = typeof command extends fc.Arbitrary<infer T> ? T : never;

/** What has been asked under a pair and not been answered, as the peer counts. */
class Ledger {
  readonly lookups = new Map<string, number>();
  readonly fetches = new Map<string, number>();
  readonly aborts = new Map<string, number>();
  /** Ids of which a round was closed: lookups of it may have been dropped without an answer. */
  readonly closedIds = new Set<string>();

  add(map: Map<string, number>, pair: string, by: number): void {
    const count = (map.get(pair) ?? 0) + by;
    if (count < 0) throw new Error(`one answer too many for ${pair}`);
    if (count === 0) map.delete(pair);
    else map.set(pair, count);
  }
}

class World {
  readonly node = new NodeHarness({ numBlocks: 16, limits: { maxRounds: 4, maxKeys: 8 } });
  readonly sessions = [
    this.node.session({
      isKvpeer: true,
      features: ['partial_fetch', 'speculative_fetch', 'checksums'],
      socketsDrainAtOnce: false,
    }),
    this.node.session({ socketsDrainAtOnce: false }),
  ];
  readonly ledgers = [new Ledger(), new Ledger()];
  private stores: SlotSet[] = [];

  run(one: Command): void {
    const { node, sessions } = this;
    const { shards } = node;
    if (one.type === 'fetch' || one.type === 'finish' || one.type === 'abort') {
      this.ledgers[one.peer].closedIds.add(one.id);
    }
    switch (one.type) {
      case 'lookup': {
        const { ledgers } = this;
        ledgers[one.peer].add(ledgers[one.peer].lookups, one.id, 1);
        sessions[one.peer].producer.onLookup(
          lookupMessage(one.id, one.round, keysOf(...one.keys), one.ttlMs),
        );
        break;
      }
      case 'fetch': {
        const ledger = this.ledgers[one.peer];
        // A further fetch for a pair takes the place of the earlier one and of its abort.
        ledger.fetches.set(`${one.id}#${one.round}`, 1);
        ledger.aborts.delete(`${one.id}#${one.round}`);
        sessions[one.peer].producer.onFetch(
          fetchMessage(one.id, one.round, keysOf(...one.keys), one.keys, one.ttlMs, one.ifHeld),
        );
        break;
      }
      case 'finish':
        sessions[one.peer].producer.onFetch(fetchMessage(one.id, 0, Buffer.alloc(0), []));
        for (const round of [0, 1, 2]) this.ledgers[one.peer].fetches.delete(`${one.id}#${round}`);
        break;
      case 'abort': {
        const ledger = this.ledgers[one.peer];
        ledger.fetches.delete(`${one.id}#${one.round}`);
        ledger.aborts.set(`${one.id}#${one.round}`, 1);
        sessions[one.peer].abort(one.id, one.round);
        break;
      }
      case 'store':
        this.stores.push(node.reserve(...one.keys));
        break;
      case 'settleStore': {
        const set = this.stores.shift();
        if (set === undefined) break;
        if (one.isPublished) node.publish(set);
        else node.abandon(set);
        break;
      }
      case 'storeForDecoder':
        node.storeFor('pd', ...one.keys);
        break;
      case 'openDecoder':
        node.decoderRequests.open('pd');
        break;
      case 'finishDecoder':
        node.decoderRequests.finish('pd');
        break;
      case 'hold':
        shards.hold(one.operation);
        break;
      case 'resume':
        shards.resume(one.operation);
        break;
      case 'fail':
        shards.failNext(one.operation, { code: 'KVPEER_BUSY' });
        break;
      case 'settle':
        shards.settle();
        break;
      case 'endServe':
        shards.serves.at(0)?.end(one.outcome);
        break;
      case 'drainSockets':
        sessions[one.peer].drainSockets();
        break;
      case 'advance':
        node.advance(one.ms);
        break;
      case 'end':
        sessions[one.peer].end();
        break;
    }
    this.read();
  }

  /** Books what was sent, and throws at an answer to nothing. */
  read(): void {
    this.sessions.forEach((session, i) => {
      const ledger = this.ledgers[i];
      for (const frame of session.sent()) {
        const [type, pair] = frame.split(' ');
        if (type === 'lookup_resp') ledger.add(ledger.lookups, pair.split('#')[0], -1);
        else if (type === 'transfer_done') ledger.add(ledger.fetches, pair, -1);
        else ledger.add(ledger.aborts, pair, -1);
      }
    });
  }

  /** Everything that is under way comes to its end. */
  wind(): void {
    const { node } = this;
    for (const operation of ['match', 'hardStop'] as const) node.shards.resume(operation);
    node.shards.settle();
    for (const set of this.stores.splice(0)) node.abandon(set);
    for (let i = 0; i < 50; i++) {
      node.advance(20_000);
      for (const session of this.sessions) session.drainSockets();
      this.read();
    }
  }
}

describe('any sequence of events', () => {
  it('leaves no pin, no set and no charge behind, and answers each fetch and abort that still stands once', () => {
    fc.assert(
      fc.property(fc.array(command, { maxLength: 60, size: 'max' }), (commands) => {
        const world = new World();
        const { node, sessions } = world;
        node.put(0, 1, 2, 3, 4, 5);
        const hasEnded = [false, false];
        for (const one of commands) {
          world.run(one);
          if (one.type === 'end') hasEnded[one.peer] = true;
          expect(node.budget.total).toBeLessThanOrEqual(node.budget.totalLimit);
        }
        world.wind();
        expect(node.pins).toBe(0);
        expect(node.budget.total).toBe(0);
        expect(node.budget.heldKeys).toBe(0);
        expect(node.shards.totals()).toMatchObject({ openSets: 0, waiting: 0, writing: 0 });
        expect(node.decoderRequests.pinnedCount).toBe(0);
        sessions.forEach((session, i) => {
          expect(session.producer.stats()).toEqual({
            leaseCount: 0,
            leasePinCount: 0,
            parkedCount: 0,
            serveCount: 0,
          });
          if (!hasEnded[i]) {
            const { lookups, closedIds } = world.ledgers[i];
            expect([...lookups.keys()].filter((id) => !closedIds.has(id))).toEqual([]);
            expect([...world.ledgers[i].fetches.keys()]).toEqual([]);
            expect([...world.ledgers[i].aborts.keys()]).toEqual([]);
          }
          session.end();
          session.drainSockets();
          expect(session.producer.isDrained()).toBe(true);
          expect(session.drainedCount).toBe(1);
        });
        expect(node.wakes).toEqual([]);
      }),
      { numRuns: 300 },
    );
  });
});
