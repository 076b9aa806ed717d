// Blocks kept for remote decoders, the pin budget of remote lookups, and the queue of deadlines.

import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { Deadlines } from '../../src/main/session/deadlines.js';
import { NodePinBudget } from '../../src/main/session/pin-budget.js';
import type { PinReservation } from '../../src/main/session/roles.js';
import { NodeHarness } from '../fixtures/producer-harness.js';

describe('requests with a remote decoder', () => {
  it('keep their blocks pinned until they are fetched', () => {
    const node = new NodeHarness();
    const { decoderRequests } = node;
    expect(decoderRequests.state('pd')).toBe('unknown');
    decoderRequests.open('pd');
    node.storeFor('pd', 1, 2);
    expect(decoderRequests.state('pd')).toBe('open');
    expect(decoderRequests.pinnedCount).toBe(2);
    decoderRequests.onFetched('pd');
    expect(decoderRequests.pinnedCount).toBe(0);
    expect(node.pins).toBe(0);
    decoderRequests.finish('pd');
    expect(decoderRequests.state('pd')).toBe('finished');
  });

  it('are reaped when nobody comes for the blocks in time, whether finished or not', () => {
    const node = new NodeHarness();
    const { decoderRequests } = node;
    const ended: string[] = [];
    decoderRequests.onEnded = (id) => ended.push(id);
    decoderRequests.open('a');
    decoderRequests.open('b');
    node.storeFor('a', 1);
    node.storeFor('b', 2);
    node.advance(30_000);
    node.storeFor('b', 3);
    node.advance(30_000);
    expect([decoderRequests.state('a'), decoderRequests.state('b')]).toEqual(['reaped', 'open']);
    expect(node.pins).toBe(2);
    expect(ended).toEqual(['a']);
    node.advance(30_000);
    expect(node.pins).toBe(0);
    node.advance(30_000);
    expect([decoderRequests.state('a'), decoderRequests.state('b')]).toEqual(['unknown', 'reaped']);
    node.advance(30_000);
    expect(decoderRequests.state('b')).toBe('unknown');
    expect(node.wakes).toEqual([]);
  });

  it('that have stored nothing yet stay open for as long as they run', () => {
    const node = new NodeHarness();
    node.decoderRequests.open('pd');
    node.advance(1_000_000);
    expect(node.decoderRequests.state('pd')).toBe('open');
  });

  it('do not pin what is stored after they were reaped (section 10 number 7)', () => {
    const node = new NodeHarness();
    node.decoderRequests.open('pd');
    node.storeFor('pd', 1);
    node.advance(60_000);
    node.storeFor('pd', 2);
    expect(node.decoderRequests.pinnedCount).toBe(0);
    expect(node.pins).toBe(0);
  });

  it('can be opened again under an id that was reaped', () => {
    const node = new NodeHarness();
    node.decoderRequests.open('pd');
    node.decoderRequests.finish('pd');
    node.advance(60_000);
    expect(node.decoderRequests.state('pd')).toBe('reaped');
    node.decoderRequests.open('pd');
    expect(node.decoderRequests.state('pd')).toBe('open');
  });

  it('tell the sessions of every batch and once of their end', () => {
    const node = new NodeHarness();
    const events: string[] = [];
    node.decoderRequests.onStored = (id) => events.push(`stored ${id}`);
    node.decoderRequests.onEnded = (id) => events.push(`ended ${id}`);
    node.decoderRequests.finish('nobody');
    node.decoderRequests.open('pd');
    node.storeFor('pd', 1);
    node.storeFor('pd', 2);
    node.decoderRequests.finish('pd');
    node.decoderRequests.finish('pd');
    expect(events).toEqual(['stored pd', 'stored pd', 'ended pd']);
  });
});

describe('the pin budget', () => {
  it('allows a peer its share and everybody half the pool', () => {
    const budget = new NodePinBudget({ numBlocks: 100, peerPinShare: 0.25 });
    expect(budget.peerLimit).toBe(25);
    expect(budget.totalLimit).toBe(50);
    expect(new NodePinBudget({ numBlocks: 2, peerPinShare: 0.25 }).peerLimit).toBe(1);
    expect(new NodePinBudget({ numBlocks: 100, peerPinShare: 0.9 }).peerLimit).toBe(50);
  });

  it('bounds the keys in kept results, for a peer and for all of them', () => {
    const budget = new NodePinBudget({ numBlocks: 0, peerPinShare: 0.25 });
    const accounts = [1, 2, 3, 4, 5].map(() => budget.openAccount());
    const reservations = accounts.slice(0, 4).map((account) => {
      expect(account.mayHold(131_072)).toBe(true);
      const reservation = account.reserve(131_072);
      expect(account.mayHold(1)).toBe(false);
      return reservation;
    });
    expect(accounts[4].mayHold(1)).toBe(false);
    accounts[0].settle(reservations[0], 0);
    accounts[1].settle(reservations[1], 5);
    expect(accounts[4].mayHold(131_072)).toBe(true);
    expect(accounts[1].mayHold(1)).toBe(false);
    accounts[1].give(5, 131_072);
    expect(budget.heldKeys).toBe(2 * 131_072);
  });

  it('never charges less than the different slots that are pinned, nor more than the limits', () => {
    const operation = fc.record({
      peer: fc.nat(2),
      slots: fc.array(fc.nat(39), { minLength: 1, maxLength: 12 }),
      isGiving: fc.boolean(),
      isLeftOpen: fc.boolean(),
    });
    fc.assert(
      fc.property(fc.array(operation, { maxLength: 60 }), (operations) => {
        const budget = new NodePinBudget({ numBlocks: 40, peerPinShare: 0.25 });
        interface Held {
          readonly found: readonly number[];
          readonly keyCount: number;
        }
        const peers = [0, 1, 2].map(() => ({
          account: budget.openAccount(),
          held: [] as Held[],
          open: [] as (() => void)[],
        }));
        const pinnedBy = (held: Held[]): Set<number> => new Set(held.flatMap(({ found }) => found));
        for (const { peer, slots, isGiving, isLeftOpen } of operations) {
          const { account, held, open } = peers[peer];
          const settle = (reservation: PinReservation, found: number[]): void => {
            account.settle(reservation, found.length);
            if (found.length > 0) held.push({ found, keyCount: slots.length });
          };
          if (isGiving) {
            const given = held.shift();
            if (given !== undefined) account.give(given.found.length, given.keyCount);
          } else if (account.fits(slots.length)) {
            // A match without a limit; it may complete later.
            const reservation = account.reserve(slots.length);
            const complete = (): void => {
              settle(
                reservation,
                slots.filter((slot) => slot % 3 !== 0),
              );
            };
            if (isLeftOpen) open.push(complete);
            else complete();
          } else {
            // A match held to the slot limit, alone.
            for (const complete of open.splice(0)) complete();
            const { slotLimit } = account;
            const reservation = account.reserve(slots.length, slotLimit);
            const pinned = pinnedBy(held);
            const found = slots.filter((slot) => {
              if (!pinned.has(slot) && pinned.size >= slotLimit) return false;
              pinned.add(slot);
              return true;
            });
            settle(reservation, found);
          }
          const total = peers.reduce((sum, one) => sum + pinnedBy(one.held).size, 0);
          expect(budget.total).toBeGreaterThanOrEqual(total);
          expect(budget.total).toBeLessThanOrEqual(budget.totalLimit);
          for (const one of peers) expect(pinnedBy(one.held).size).toBeLessThanOrEqual(budget.peerLimit);
        }
        for (const { account, held, open } of peers) {
          for (const complete of open) complete();
          for (const { found, keyCount } of held) account.give(found.length, keyCount);
          expect(account.useCount).toBe(0);
        }
        expect(budget.total).toBe(0);
        expect(budget.heldKeys).toBe(0);
      }),
      { numRuns: 300 },
    );
  });
});

describe('deadlines of one length', () => {
  it('expire in order, ask to be woken for the first, and look at nothing that is not due', () => {
    const wakes: number[] = [];
    const deadlines = new Deadlines<string>((timeMs) => wakes.push(timeMs));
    deadlines.set('a', 10);
    deadlines.set('b', 20);
    deadlines.set('c', 30);
    deadlines.set('a', 40);
    deadlines.delete('b');
    expect(wakes).toEqual([10]);
    expect(deadlines.nextMs).toBe(30);
    const expired: string[] = [];
    deadlines.expire(35, (item) => {
      expired.push(item);
      deadlines.set('d', 50);
    });
    expect(expired).toEqual(['c']);
    expect(deadlines.shift()).toBe('a');
    expect(deadlines.size).toBe(1);
    expect(deadlines.has('d')).toBe(true);
    deadlines.delete('d');
    expect(deadlines.nextMs).toBe(Infinity);
    expect(deadlines.shift()).toBeUndefined();
  });
});
