// Things that are known by a number for as long as they are open: an array instead of a hash table.

/** Numbers are positive int32. */
const NUMBERS = 2 ** 31;

/**
 *     number = generation * capacity + place          place: index in the array, taken again as soon as it is free
 *
 * The generation tells an item from those that had its place before: a number that comes late finds nothing, unless
 * its place was taken 2^31 / capacity times since.
 */
export class Numbered<T extends object> {
  private readonly items: (T | undefined)[] = [];
  /** Number of the item in each place, or of the last one that was there. */
  private readonly numbers: number[] = [];
  private readonly free: number[] = [];
  private readonly capacity: number;
  private count = 0;

  /** @param most items at a time, at most 2^26; rounded up to a power of two */
  constructor(most: number) {
    this.capacity = 2 ** Math.ceil(Math.log2(Math.max(2, most)));
    if (!(this.capacity <= 2 ** 26)) throw new RangeError(`a table for ${most} items`);
  }

  get size(): number {
    return this.count;
  }

  /** @returns the item's number @throws Error when the table is full */
  add(item: T): number {
    const place = this.free.pop() ?? this.items.length;
    if (place >= this.capacity) throw new Error(`more than ${this.capacity} items at a time`);
    const last = this.numbers[place] ?? place;
    const next = last + this.capacity;
    const number = next < NUMBERS ? next : place + this.capacity;
    this.items[place] = item;
    this.numbers[place] = number;
    this.count += 1;
    return number;
  }

  get(number: number): T | undefined {
    const place = number & (this.capacity - 1);
    return this.numbers[place] === number ? this.items[place] : undefined;
  }

  delete(number: number): void {
    if (this.get(number) === undefined) return;
    const place = number & (this.capacity - 1);
    this.items[place] = undefined;
    this.free.push(place);
    this.count -= 1;
  }

  /** All items, a copy. */
  all(): T[] {
    return this.items.filter((item) => item !== undefined);
  }

  clear(): void {
    for (const number of this.numbers) this.delete(number);
  }
}
