// How much of the pool lookups of remote peers may pin: per peer, and all peers together.

import type { PinAccount, PinBudget, PinReservation } from './roles.js';

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
  #total = 0;

  constructor({ numBlocks, peerPinShare, allPeersPinShare = 0.5 }: PinBudgetOptions) {
    this.totalLimit = Math.floor(numBlocks * allPeersPinShare);
    // A tiny pool still serves: a share of nothing would make every lookup a miss.
    this.peerLimit = Math.min(this.totalLimit, Math.max(1, Math.floor(numBlocks * peerPinShare)));
  }

  get total(): number {
    return this.#total;
  }

  openAccount(): PinAccount {
    return new Account(this, (growth) => {
      this.#total += growth;
    });
  }
}

/**
 * `charge` bounds the number of different slots: a match adds at most as many as it pins, one that is held to a slot
 * limit ends at most there, and there are never more slots than pins.
 */
class Account implements PinAccount {
  readonly #budget: NodePinBudget;
  readonly #addToTotal: (growth: number) => void;
  #charge = 0;
  #useCount = 0;

  constructor(budget: NodePinBudget, addToTotal: (growth: number) => void) {
    this.#budget = budget;
    this.#addToTotal = addToTotal;
  }

  get useCount(): number {
    return this.#useCount;
  }

  fits(count: number): boolean {
    return this.#charge + count <= this.slotLimit;
  }

  get slotLimit(): number {
    const { peerLimit, totalLimit, total } = this.#budget;
    return Math.min(peerLimit, totalLimit - (total - this.#charge));
  }

  reserve(count: number, slotLimit = Infinity): PinReservation {
    const before = this.#charge;
    this.#useCount += count;
    this.#setCharge(Math.max(before, Math.min(before + count, slotLimit)));
    return { count, charged: this.#charge - before };
  }

  settle({ count, charged }: PinReservation, pinCount: number): void {
    this.#useCount -= count - pinCount;
    this.#setCharge(this.#charge - Math.max(0, charged - pinCount));
  }

  give(pinCount: number): void {
    this.#useCount -= pinCount;
    this.#setCharge(this.#charge);
  }

  #setCharge(charge: number): void {
    const bounded = Math.min(charge, this.#useCount);
    this.#addToTotal(bounded - this.#charge);
    this.#charge = bounded;
  }
}
