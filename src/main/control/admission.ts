// Who gets heard before there is a session: bounds on what strangers cost. Pure; time is an argument.
//
// A stranger is an address without a live session. What it sends is worth nothing unless it is a `connect`, so it gets
// a small allowance; and each `connect` that is let in costs a socket and a registration with the data plane, so those
// have an allowance of their own, and all strangers together have one: identities cost whoever makes them up nothing.
// All fill up again with time. Memory is bounded: the oldest stranger is forgotten first, which merely gives it a fresh
// allowance of its own.

export interface AdmissionLimits {
  /** Most peers with a session at the same time. */
  readonly peers: number;
  /** Most strangers remembered. */
  readonly strangers: number;
  /** Longest frame of a stranger, in bytes: a `connect` with the longest metadata, and room for more fields. */
  readonly strangerFrameBytes: number;
  /** Frames a stranger may send at once, and how many come back each second. */
  readonly strangerFrames: number;
  readonly strangerFramesPerSecond: number;
  /** Sessions one address may begin at once, and how many come back each second. */
  readonly connects: number;
  readonly connectsPerSecond: number;
  /**
   * The same for all addresses together. A session that comes to nothing takes a few milliseconds of the event loop (a
   * socket and its monitor, made and closed), which the other peers wait.
   */
  readonly allConnects: number;
  readonly allConnectsPerSecond: number;
}

export const DEFAULT_ADMISSION_LIMITS: AdmissionLimits = {
  peers: 128,
  strangers: 1_024,
  strangerFrameBytes: 128 * 1024,
  strangerFrames: 64,
  strangerFramesPerSecond: 16,
  connects: 32,
  connectsPerSecond: 1,
  allConnects: 128,
  allConnectsPerSecond: 32,
};

/** Why a stranger is not heard. Label `reason` of `kvpeer_rejections_total`. */
export const ADMISSION_REJECTIONS = [
  'stranger_frame_size',
  'stranger_frames',
  'connect_rate',
  'peer_cap',
] as const;

export type AdmissionRejection = (typeof ADMISSION_REJECTIONS)[number];

interface Stranger {
  frames: number;
  connects: number;
  refilledAtMs: number;
}

export class Admission {
  private readonly strangers = new Map<string, Stranger>();

  private allConnects: number;
  private refilledAtMs = -Infinity;

  constructor(private readonly limits: AdmissionLimits = DEFAULT_ADMISSION_LIMITS) {
    this.allConnects = limits.allConnects;
  }

  /** Strangers remembered at the moment. */
  get strangerCount(): number {
    return this.strangers.size;
  }

  /**
   * Whether a frame from an address without a session should be scanned at all.
   *
   * @returns undefined when it should, else why not
   */
  onFrame(address: string, frameBytes: number, nowMs: number): AdmissionRejection | undefined {
    if (frameBytes > this.limits.strangerFrameBytes) return 'stranger_frame_size';
    const stranger = this.recall(address, nowMs);
    if (stranger.frames < 1) return 'stranger_frames';
    stranger.frames--;
    return undefined;
  }

  /**
   * Whether a complete, valid `connect` from an address without a session may begin one.
   *
   * @param sessionCount sessions that live at the moment
   * @returns undefined when it may, else why not
   */
  onConnect(address: string, sessionCount: number, nowMs: number): AdmissionRejection | undefined {
    if (sessionCount >= this.limits.peers) return 'peer_cap';
    const stranger = this.recall(address, nowMs);
    this.refillAll(nowMs);
    if (stranger.connects < 1 || this.allConnects < 1) return 'connect_rate';
    stranger.connects--;
    this.allConnects--;
    return undefined;
  }

  /**
   * The stranger's connection ended: what was still under way on it has all been counted, so a new connection gets a
   * full allowance of frames. That of `connect` stays used.
   */
  onPeerGone(address: string): void {
    const stranger = this.strangers.get(address);
    if (stranger !== undefined) stranger.frames = this.limits.strangerFrames;
  }

  private refillAll(nowMs: number): void {
    const { allConnects, allConnectsPerSecond } = this.limits;
    const seconds = Math.max(0, nowMs - this.refilledAtMs) / 1_000;
    this.allConnects = Math.min(allConnects, this.allConnects + seconds * allConnectsPerSecond);
    this.refilledAtMs = nowMs;
  }

  private recall(address: string, nowMs: number): Stranger {
    const { strangerFrames, strangerFramesPerSecond, connects, connectsPerSecond } = this.limits;
    const known = this.strangers.get(address);
    if (known !== undefined) {
      const seconds = Math.max(0, nowMs - known.refilledAtMs) / 1_000;
      known.frames = Math.min(strangerFrames, known.frames + seconds * strangerFramesPerSecond);
      known.connects = Math.min(connects, known.connects + seconds * connectsPerSecond);
      known.refilledAtMs = nowMs;
      // Moves to the young end of the map, which keeps its order of insertion.
      this.strangers.delete(address);
      this.strangers.set(address, known);
      return known;
    }
    if (this.strangers.size >= this.limits.strangers) {
      const [oldest] = this.strangers.keys();
      this.strangers.delete(oldest);
    }
    const stranger = { frames: strangerFrames, connects, refilledAtMs: nowMs };
    this.strangers.set(address, stranger);
    return stranger;
  }
}
