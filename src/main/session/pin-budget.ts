// How much of the pool lookups of remote peers may pin: per peer, and all peers together.

import type { PinAccount, PinBudget, PinReservation } from './roles.js';

/**
 * Keys in results that lookups of all peers may keep together, besides one for each slot: a key takes about 8 bytes, so
 * this is less than half of the request arena's default size (16 MiB and 24 bytes a slot).
 */
const HELD_KEYS_BASE = 524_288;

/** One peer's part of them. */
const PEER_HELD_SHARE = 0.25;

export interface PinBudgetOptions {
  readonly numBlocks: number;
  /** Share of the pool that the lookups of one peer may pin (design.md section 6 rule 5). */
  readonly peerPinShare: number;
  /** The same for all peers together, so that local stores always go on. Default one half. */
  readonly allPeersPinShare?: number;
}

/** See the contract in roles.ts. The sum of the accounts' charges never exceeds the share of all peers. */
export class NodePinBudget implements PinBudget {
  readonly peerLimit: number;
  readonly totalLimit: number;
  readonly heldKeysLimit: number;
  readonly peerHeldKeysLimit: number;
  #total = 0;
  #heldKeys = 0;
  /** Matches that have reserved and not settled. */
  #underWayCount = 0;
  #waiting: (() => void)[] = [];
  #isCalling = false;

  constructor({ numBlocks, peerPinShare, allPeersPinShare = 0.5 }: PinBudgetOptions) {
    this.totalLimit = Math.floor(numBlocks * allPeersPinShare);
    // A tiny pool still serves: a share of nothing would make every lookup a miss.
    this.peerLimit = Math.min(this.totalLimit, Math.max(1, Math.floor(numBlocks * peerPinShare)));
    this.heldKeysLimit = HELD_KEYS_BASE + numBlocks;
    this.peerHeldKeysLimit = Math.floor(this.heldKeysLimit * PEER_HELD_SHARE);
  }

  get total(): number {
    return this.#total;
  }

  /** Keys in results that are kept. */
  get heldKeys(): number {
    return this.#heldKeys;
  }

  openAccount(): PinAccount {
    return new Account(this, (slotGrowth, keyGrowth) => {
      this.#total += slotGrowth;
      this.#heldKeys += keyGrowth;
    });
  }

  begin(): void {
    this.#underWayCount += 1;
  }

  /** Returns whether somebody has waited for it and has not had its turn yet. */
  settled(): boolean {
    this.#underWayCount -= 1;
    if (this.#waiting.length > 0 && !this.#isCalling) {
      this.#isCalling = true;
      // Not inside the account's own call.
      queueMicrotask(() => {
        this.#isCalling = false;
        const waiting = this.#waiting;
        this.#waiting = [];
        for (const then of waiting) then();
      });
    }
    return this.#isCalling;
  }

  /** False when nothing is under way. */
  whenSettled(then: () => void): boolean {
    if (this.#underWayCount === 0) return false;
    this.#waiting.push(then);
    return true;
  }
}

/**
 * `charge` bounds the number of different slots: a match adds at most as many as it pins, one that is held to a slot
 * limit ends at most there, and there are never more slots than pins.
 */
class Account implements PinAccount {
  readonly #budget: NodePinBudget;
  readonly #addToTotals: (slotGrowth: number, keyGrowth: number) => void;
  #charge = 0;
  #heldKeys = 0;
  #useCount = 0;

  constructor(budget: NodePinBudget, addToTotals: (slotGrowth: number, keyGrowth: number) => void) {
    this.#budget = budget;
    this.#addToTotals = addToTotals;
  }

  get useCount(): number {
    return this.#useCount;
  }

  mayHold(count: number): boolean {
    const { heldKeys, heldKeysLimit, peerHeldKeysLimit } = this.#budget;
    return this.#heldKeys + count <= peerHeldKeysLimit && heldKeys + count <= heldKeysLimit;
  }

  fits(count: number): boolean {
    return this.#charge + count <= this.slotLimit;
  }

  get slotLimit(): number {
    const { peerLimit, totalLimit, total } = this.#budget;
    return Math.min(peerLimit, totalLimit - (total - this.#charge));
  }

  waitForOthers(then: () => void): boolean {
    return this.slotLimit < this.#budget.peerLimit && this.#budget.whenSettled(then);
  }

  reserve(count: number, slotLimit = Infinity): PinReservation {
    this.#budget.begin();
    const before = this.#charge;
    this.#useCount += count;
    this.#addHeldKeys(count);
    this.#setCharge(Math.max(before, Math.min(before + count, slotLimit)));
    return { count, charged: this.#charge - before };
  }

  settle({ count, charged }: PinReservation, pinCount: number): boolean {
    this.#useCount -= count - pinCount;
    if (pinCount === 0) this.#addHeldKeys(-count);
    this.#setCharge(this.#charge - Math.max(0, charged - pinCount));
    return this.#budget.settled();
  }

  give(pinCount: number, keyCount: number): void {
    this.#useCount -= pinCount;
    this.#addHeldKeys(-keyCount);
    this.#setCharge(this.#charge);
  }

  #addHeldKeys(growth: number): void {
    this.#heldKeys += growth;
    this.#addToTotals(0, growth);
  }

  #setCharge(charge: number): void {
    const bounded = Math.min(charge, this.#useCount);
    this.#addToTotals(bounded - this.#charge, 0);
    this.#charge = bounded;
  }
}
