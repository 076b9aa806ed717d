// What found no room in rings or arena waits here: in order, for a bounded time where the asker can be told.

/** Waiting operations that are tried in one go although they may still find no room. */
const RETRIES_PER_PASS = 64;

/** Tells the asker that it never ran. */
export type EndWaiting = (reason: 'busy' | 'closed') => void;

interface Waiting {
  /** Tries to submit; false when there still is no room. */
  readonly attempt: () => boolean;
  readonly end: EndWaiting;
  readonly deadlineMs: number;
}

export class RoomQueue {
  private readonly queueMs: number;
  private readonly maxWaitingCount: number;
  private readonly bounded: Waiting[] = [];
  private readonly urgent: Waiting[] = [];
  private timer: NodeJS.Timeout | undefined;
  private isPumping = false;
  private isClosed = false;

  /**
   * @param queueMs         how long an operation may wait for room
   * @param maxWaitingCount operations that may wait at a time; further ones expire at once
   */
  constructor(queueMs: number, maxWaitingCount: number) {
    this.queueMs = queueMs;
    this.maxWaitingCount = maxWaitingCount;
  }

  get count(): number {
    return this.bounded.length + this.urgent.length;
  }

  /**
   * Runs `attempt` now, or again and again when room appears, in the order of the calls.
   *
   * @param urgency 'bounded': it ends with 'busy' after queueMs; 'must': it waits as long as it takes, before the others
   */
  whenRoom(attempt: () => boolean, urgency: 'bounded' | 'must', end: EndWaiting): void {
    if (this.isClosed) {
      queueMicrotask(() => {
        end('closed');
      });
      return;
    }
    const list = urgency === 'must' ? this.urgent : this.bounded;
    if (list.length === 0 && attempt()) return;
    if (urgency === 'bounded' && list.length >= this.maxWaitingCount) {
      queueMicrotask(() => {
        end('busy');
      });
      return;
    }
    list.push({ attempt, end, deadlineMs: performance.now() + this.queueMs });
    this.startTimer();
  }

  /** Tries what waits: a completion, room in the arena or a new worker may have made room. */
  pump(): void {
    if (this.isPumping || this.isClosed) return;
    this.isPumping = true;
    try {
      retry(this.urgent);
      retry(this.bounded);
    } finally {
      this.isPumping = false;
    }
  }

  /** Nothing is tried any more. @returns how to end what waited */
  close(): EndWaiting[] {
    this.isClosed = true;
    clearTimeout(this.timer);
    return [...this.urgent.splice(0), ...this.bounded.splice(0)].map(({ end }) => end);
  }

  private startTimer(): void {
    if (this.timer !== undefined || this.isClosed || this.bounded.length === 0) return;
    // All wait equally long, so the first is the next.
    const ms = this.bounded[0].deadlineMs - performance.now();
    this.timer = setTimeout(this.onTimer, Math.max(1, Math.ceil(ms)));
  }

  private readonly onTimer = (): void => {
    this.timer = undefined;
    this.pump();
    const now = performance.now();
    let count = 0;
    while (count < this.bounded.length && this.bounded[count].deadlineMs <= now) count += 1;
    for (const entry of this.bounded.splice(0, count)) entry.end('busy');
    this.startTimer();
  };
}

/** Takes out what found room, in order; gives up for now after a number of failures. */
function retry(list: Waiting[]): void {
  let at = 0;
  while (at < list.length && at < RETRIES_PER_PASS) {
    if (list[at].attempt()) list.splice(at, 1);
    else at += 1;
  }
}
