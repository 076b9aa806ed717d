// Replacement policies to compare with: each a set of block ids of a given size, touched one block at a time.

export interface Policy {
  has(id: number): boolean;
  /** The block is used, and stored if it was not here. `requestNumber` counts from 0. */
  touch(id: number, requestNumber: number, position: number): void;
}

/** Maps keep their order of insertion: the first key of a Map is the oldest. */
type Queue = Map<number, true>;

function oldest(queue: Queue): number {
  for (const id of queue.keys()) return id;
  throw new Error('an empty queue has no oldest block');
}

export class Lru implements Policy {
  readonly #queue: Queue = new Map();

  constructor(readonly size: number) {}

  has(id: number): boolean {
    return this.#queue.has(id);
  }

  touch(id: number): void {
    this.#queue.delete(id);
    this.#queue.set(id, true);
    if (this.#queue.size > this.size) this.#queue.delete(oldest(this.#queue));
  }
}

export class Fifo implements Policy {
  readonly #queue: Queue = new Map();

  constructor(readonly size: number) {}

  has(id: number): boolean {
    return this.#queue.has(id);
  }

  touch(id: number): void {
    if (this.#queue.has(id)) return;
    this.#queue.set(id, true);
    if (this.#queue.size > this.size) this.#queue.delete(oldest(this.#queue));
  }
}

/** One visited bit and a hand that goes round the places, a newcomer's just behind it. */
export class Clock implements Policy {
  readonly #places: number[] = [];
  readonly #placeOf = new Map<number, number>();
  readonly #visited: boolean[] = [];
  #hand = 0;

  constructor(readonly size: number) {}

  has(id: number): boolean {
    return this.#placeOf.has(id);
  }

  touch(id: number): void {
    const place = this.#placeOf.get(id);
    if (place !== undefined) {
      this.#visited[place] = true;
      return;
    }
    if (this.#places.length < this.size) {
      this.#put(this.#places.length, id);
      return;
    }
    while (this.#visited[this.#hand]) {
      this.#visited[this.#hand] = false;
      this.#hand = (this.#hand + 1) % this.size;
    }
    this.#placeOf.delete(this.#places[this.#hand]);
    this.#put(this.#hand, id);
    this.#hand = (this.#hand + 1) % this.size;
  }

  #put(place: number, id: number): void {
    this.#places[place] = id;
    this.#visited[place] = false;
    this.#placeOf.set(id, place);
  }
}

/** Megiddo and Modha's adaptive replacement cache: recent (t1) and frequent (t2) blocks, and ghosts of both. */
export class Arc implements Policy {
  readonly #t1: Queue = new Map();
  readonly #t2: Queue = new Map();
  readonly #b1: Queue = new Map();
  readonly #b2: Queue = new Map();
  #target = 0;

  constructor(readonly size: number) {}

  has(id: number): boolean {
    return this.#t1.has(id) || this.#t2.has(id);
  }

  touch(id: number): void {
    if (this.#t1.delete(id) || this.#t2.delete(id)) {
      this.#t2.set(id, true);
      return;
    }
    if (this.#b1.has(id)) {
      this.#target = Math.min(this.size, this.#target + Math.max(1, this.#b2.size / this.#b1.size));
      this.#replace(false);
      this.#b1.delete(id);
      this.#t2.set(id, true);
      return;
    }
    if (this.#b2.has(id)) {
      this.#target = Math.max(0, this.#target - Math.max(1, this.#b1.size / this.#b2.size));
      this.#replace(true);
      this.#b2.delete(id);
      this.#t2.set(id, true);
      return;
    }
    const recent = this.#t1.size + this.#b1.size;
    const all = recent + this.#t2.size + this.#b2.size;
    if (recent >= this.size) {
      if (this.#t1.size < this.size) {
        this.#b1.delete(oldest(this.#b1));
        this.#replace(false);
      } else {
        this.#t1.delete(oldest(this.#t1));
      }
    } else if (all >= this.size) {
      if (all >= 2 * this.size) this.#b2.delete(oldest(this.#b2));
      this.#replace(false);
    }
    this.#t1.set(id, true);
  }

  #replace(isFromB2: boolean): void {
    if (this.#t1.size + this.#t2.size < this.size) return;
    const isT1 =
      this.#t1.size > 0 &&
      (this.#t1.size > this.#target || (isFromB2 && this.#t1.size === Math.floor(this.#target)));
    const [from, ghosts] = isT1 || this.#t2.size === 0 ? [this.#t1, this.#b1] : [this.#t2, this.#b2];
    const id = oldest(from);
    from.delete(id);
    ghosts.set(id, true);
  }
}

/** Yang et al.: a small queue for newcomers (a tenth), a main queue, ghosts of what left the small one unused. */
export class S3Fifo implements Policy {
  readonly #small: Queue = new Map();
  readonly #main: Queue = new Map();
  readonly #ghosts: Queue = new Map();
  readonly #uses = new Map<number, number>();
  readonly #smallSize: number;

  constructor(readonly size: number) {
    this.#smallSize = Math.max(1, Math.floor(size / 10));
  }

  has(id: number): boolean {
    return this.#uses.has(id);
  }

  touch(id: number): void {
    const uses = this.#uses.get(id);
    if (uses !== undefined) {
      this.#uses.set(id, Math.min(3, uses + 1));
      return;
    }
    while (this.#uses.size >= this.size) this.#evict();
    if (this.#ghosts.delete(id)) this.#main.set(id, true);
    else this.#small.set(id, true);
    this.#uses.set(id, 0);
  }

  #evict(): void {
    if (this.#small.size >= this.#smallSize || this.#main.size === 0) this.#evictSmall();
    else this.#evictMain();
  }

  #evictSmall(): void {
    while (this.#small.size > 0) {
      const id = oldest(this.#small);
      this.#small.delete(id);
      if ((this.#uses.get(id) ?? 0) > 1) {
        this.#main.set(id, true);
        this.#uses.set(id, 0);
        continue;
      }
      this.#uses.delete(id);
      this.#ghosts.set(id, true);
      if (this.#ghosts.size > this.size - this.#smallSize) this.#ghosts.delete(oldest(this.#ghosts));
      return;
    }
  }

  #evictMain(): void {
    while (this.#main.size > 0) {
      const id = oldest(this.#main);
      const uses = this.#uses.get(id) ?? 0;
      this.#main.delete(id);
      if (uses === 0) {
        this.#uses.delete(id);
        return;
      }
      this.#uses.set(id, uses - 1);
      this.#main.set(id, true);
    }
  }
}

/** Zhang et al.: one queue, one bit, a hand that moves from old to new and leaves what it spares where it is. */
export class Sieve implements Policy {
  /** Doubly linked, by block id: towards newer and towards older. */
  readonly #newer = new Map<number, number>();
  readonly #older = new Map<number, number>();
  readonly #visited = new Map<number, boolean>();
  #newest = -1;
  #oldest = -1;
  #hand = -1;

  constructor(readonly size: number) {}

  has(id: number): boolean {
    return this.#visited.has(id);
  }

  touch(id: number): void {
    if (this.#visited.has(id)) {
      this.#visited.set(id, true);
      return;
    }
    if (this.#visited.size >= this.size) this.#evict();
    this.#visited.set(id, false);
    this.#older.set(id, this.#newest);
    this.#newer.set(id, -1);
    if (this.#newest !== -1) this.#newer.set(this.#newest, id);
    else this.#oldest = id;
    this.#newest = id;
  }

  #evict(): void {
    let at = this.#hand === -1 ? this.#oldest : this.#hand;
    while (this.#visited.get(at) === true) {
      this.#visited.set(at, false);
      const next = this.#newer.get(at) ?? -1;
      at = next === -1 ? this.#oldest : next;
    }
    const newer = this.#newer.get(at) ?? -1;
    const older = this.#older.get(at) ?? -1;
    if (older === -1) this.#oldest = newer;
    else this.#newer.set(older, newer);
    if (newer === -1) this.#newest = older;
    else this.#older.set(newer, older);
    this.#hand = newer;
    this.#newer.delete(at);
    this.#older.delete(at);
    this.#visited.delete(at);
  }
}

/** Knows the future: the block whose next use is farthest goes, of equals the one deepest in its chain. */
export class Clairvoyant implements Policy {
  /** Requests that use a block, in order. */
  readonly #uses = new Map<number, number[]>();
  readonly #rankOf = new Map<number, number>();
  readonly #heap: { rank: number; id: number }[] = [];

  constructor(
    readonly size: number,
    requests: readonly (readonly number[])[],
  ) {
    requests.forEach((ids, requestNumber) => {
      for (const id of ids) {
        const uses = this.#uses.get(id);
        if (uses === undefined) this.#uses.set(id, [requestNumber]);
        else uses.push(requestNumber);
      }
    });
    for (const uses of this.#uses.values()) uses.reverse();
  }

  has(id: number): boolean {
    return this.#rankOf.has(id);
  }

  touch(id: number, requestNumber: number, position: number): void {
    const uses = this.#uses.get(id) ?? [];
    while (uses.length > 0 && uses[uses.length - 1] <= requestNumber) uses.pop();
    const next = uses.at(-1) ?? 1e9;
    const rank = next * 2 ** 16 + position;
    this.#rankOf.set(id, rank);
    this.#push({ rank, id });
    while (this.#rankOf.size > this.size) {
      const farthest = this.#pop();
      // Used since it was put there: it has a newer place.
      if (this.#rankOf.get(farthest.id) === farthest.rank) this.#rankOf.delete(farthest.id);
    }
  }

  #push(entry: { rank: number; id: number }): void {
    const heap = this.#heap;
    let at = heap.push(entry) - 1;
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (heap[parent].rank >= entry.rank) break;
      heap[at] = heap[parent];
      at = parent;
    }
    heap[at] = entry;
  }

  #pop(): { rank: number; id: number } {
    const heap = this.#heap;
    const [top] = heap;
    const last = heap.pop();
    if (last === undefined) throw new Error('nothing is left to evict');
    if (heap.length === 0) return top;
    let at = 0;
    for (;;) {
      const left = 2 * at + 1;
      if (left >= heap.length) break;
      const child = left + 1 < heap.length && heap[left + 1].rank > heap[left].rank ? left + 1 : left;
      if (heap[child].rank <= last.rank) break;
      heap[at] = heap[child];
      at = child;
    }
    heap[at] = last;
    return top;
  }
}

/** Sum over all requests of the blocks before the first miss. Chains are touched from the tail to the head. */
export function leadingHitsOf(policy: Policy, requests: readonly (readonly number[])[]): number {
  let hits = 0;
  requests.forEach((ids, requestNumber) => {
    let leading = 0;
    while (leading < ids.length && policy.has(ids[leading])) leading += 1;
    hits += leading;
    for (let i = ids.length - 1; i >= 0; i -= 1) policy.touch(ids[i], requestNumber, i);
  });
  return hits;
}
