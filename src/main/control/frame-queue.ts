// A bounded first-in, first-out queue of frames.

/** Removed places are given back once there are this many, so that a queue that never runs empty stays small. */
const COMPACT_AT = 1_024;

export class FrameQueue {
  private frames: Buffer[] = [];
  private head = 0;
  private totalBytes = 0;

  constructor(
    private readonly maxFrames: number,
    private readonly maxBytes: number,
  ) {}

  get length(): number {
    return this.frames.length - this.head;
  }

  get bytes(): number {
    return this.totalBytes;
  }

  /** @returns false, and does nothing, when the frame does not fit */
  push(frame: Buffer): boolean {
    if (this.length >= this.maxFrames || this.totalBytes + frame.length > this.maxBytes) return false;
    this.frames.push(frame);
    this.totalBytes += frame.length;
    return true;
  }

  /** The next one, left where it is. */
  peek(): Buffer | undefined {
    return this.length === 0 ? undefined : this.frames[this.head];
  }

  shift(): Buffer | undefined {
    if (this.length === 0) return undefined;
    const frame = this.frames[this.head++];
    this.totalBytes -= frame.length;
    if (this.head === this.frames.length) {
      this.frames = [];
      this.head = 0;
    } else if (this.head >= COMPACT_AT) {
      this.frames = this.frames.slice(this.head);
      this.head = 0;
    }
    return frame;
  }

  clear(): void {
    this.frames = [];
    this.head = 0;
    this.totalBytes = 0;
  }
}
