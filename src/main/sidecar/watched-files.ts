// Files whose contents are in use while they may be replaced: read at once, read again when they change.

import { watch, type FSWatcher } from 'node:fs';
import { open, stat } from 'node:fs/promises';
import { dirname } from 'node:path';

export interface WatchedFilesSpec<T> {
  /** Files that belong together, such as a certificate and its key. */
  readonly paths: readonly string[];
  /** Makes the value; throws when the contents are no good. */
  readonly parse: (contents: readonly Buffer[]) => T;
  /** A new, good value. */
  readonly onChange: (value: T) => void;
  /** The files changed and are no good, or cannot be read: the last good value stays. */
  readonly onRefused: (error: unknown) => void;
  /** A longer file is refused. */
  readonly maxBytes: number;
  /** Quiet time after the last event before the files are read: an editor truncates first and writes then. */
  readonly settleMs?: number;
  /** Interval of looking without an event: network file systems and some overlays send none. */
  readonly pollMs?: number;
}

export interface WatchedFiles<T> {
  readonly initial: T;
  close(): void;
}

const SETTLE_MS = 100;
/** The files are read after so many quiet times at the latest: other files of a directory may change all the time. */
const MAX_SETTLES = 10;
const POLL_MS = 10_000;

/**
 * Reads the files, then watches the directories they are in: a file that is replaced by a rename (editors, and the
 * `..data` link of a mounted ConfigMap or Secret) is another inode, of which a watch on the file would see nothing.
 *
 * @throws what reading or `parse` throws for the first contents
 */
export async function openWatchedFiles<T>(spec: WatchedFilesSpec<T>): Promise<WatchedFiles<T>> {
  const contents = await readAll(spec.paths, spec.maxBytes);
  const initial = spec.parse(contents);
  const watcher = new Watcher(spec, contents);
  return {
    initial,
    close: () => {
      watcher.close();
    },
  };
}

class Watcher<T> {
  readonly #spec: WatchedFilesSpec<T>;
  readonly #directories: readonly WatchedDirectory[];
  readonly #poll: NodeJS.Timeout;
  #settle: NodeJS.Timeout | undefined;
  /** When the first event came that no reading has followed yet. */
  #firstEventAt: number | undefined;
  /** What was judged last, good or bad, so that each state of the files is told once. */
  #judged: readonly Buffer[] | string;
  #isReading = false;
  #isClosed = false;

  constructor(spec: WatchedFilesSpec<T>, contents: readonly Buffer[]) {
    this.#spec = spec;
    this.#judged = contents;
    const onEvent = (): void => {
      this.#later();
    };
    const directories = new Set(spec.paths.map((path) => dirname(path)));
    this.#directories = [...directories].map((directory) => new WatchedDirectory(directory, onEvent));
    this.#poll = setInterval(onEvent, spec.pollMs ?? POLL_MS);
    this.#poll.unref();
    // What changed between the first reading and the watch sent no event.
    onEvent();
  }

  #later(): void {
    if (this.#isClosed) return;
    clearTimeout(this.#settle);
    const settleMs = this.#spec.settleMs ?? SETTLE_MS;
    const now = performance.now();
    this.#firstEventAt ??= now;
    const left = this.#firstEventAt + MAX_SETTLES * settleMs - now;
    this.#settle = setTimeout(
      () => {
        void this.#look();
      },
      Math.max(0, Math.min(settleMs, left)),
    );
    this.#settle.unref();
  }

  async #look(): Promise<void> {
    if (this.#isReading) {
      this.#firstEventAt = undefined;
      this.#later();
      return;
    }
    this.#firstEventAt = undefined;
    this.#isReading = true;
    try {
      for (const directory of this.#directories) await directory.renew();
      const contents = await readAll(this.#spec.paths, this.#spec.maxBytes);
      if (!this.#isClosed && this.#isNews(contents)) this.#judge(contents);
    } catch (error) {
      const reason = String(error);
      if (!this.#isClosed && this.#judged !== reason) {
        this.#judged = reason;
        this.#spec.onRefused(error);
      }
    } finally {
      this.#isReading = false;
    }
  }

  #isNews(contents: readonly Buffer[]): boolean {
    const judged = this.#judged;
    return typeof judged === 'string' || contents.some((content, index) => !content.equals(judged[index]));
  }

  #judge(contents: readonly Buffer[]): void {
    this.#judged = contents;
    let value: T;
    try {
      value = this.#spec.parse(contents);
    } catch (error) {
      this.#spec.onRefused(error);
      return;
    }
    this.#spec.onChange(value);
  }

  close(): void {
    this.#isClosed = true;
    clearTimeout(this.#settle);
    clearInterval(this.#poll);
    for (const directory of this.#directories) directory.close();
  }
}

/** Events of one directory, also after it was removed and made anew. */
class WatchedDirectory {
  readonly #path: string;
  readonly #onEvent: () => void;
  #watcher: FSWatcher | undefined;
  #inode: number | undefined;
  #isClosed = false;

  constructor(path: string, onEvent: () => void) {
    this.#path = path;
    this.#onEvent = onEvent;
    this.#start();
  }

  #start(): void {
    try {
      this.#watcher = watch(this.#path, { persistent: false }, this.#onEvent);
    } catch {
      // The directory is gone, or the host has no watches left: the interval looks at the files all the same.
      return;
    }
    this.#watcher.on('error', () => {
      this.#stop();
    });
  }

  #stop(): void {
    this.#watcher?.close();
    this.#watcher = undefined;
    this.#inode = undefined;
  }

  /** A watch belongs to the inode; another directory of that name needs another one. */
  async renew(): Promise<void> {
    const inode = await stat(this.#path).then(
      ({ ino }) => ino,
      () => undefined,
    );
    if (this.#isClosed || (this.#watcher !== undefined && this.#inode === inode)) return;
    if (this.#inode !== undefined || this.#watcher === undefined) {
      this.#stop();
      this.#start();
    }
    this.#inode = inode;
  }

  close(): void {
    this.#isClosed = true;
    this.#stop();
  }
}

async function readAll(paths: readonly string[], maxBytes: number): Promise<readonly Buffer[]> {
  return Promise.all(paths.map((path) => readBounded(path, maxBytes)));
}

async function readBounded(path: string, maxBytes: number): Promise<Buffer> {
  const file = await open(path);
  try {
    // One byte more than may be there tells a file that is too long, also one whose length is not told beforehand.
    const buffer = Buffer.alloc(maxBytes + 1);
    let length = 0;
    while (length < buffer.length) {
      const { bytesRead } = await file.read(buffer, length, buffer.length - length, null);
      if (bytesRead === 0) return Buffer.from(buffer.subarray(0, length));
      length += bytesRead;
    }
  } finally {
    await file.close();
  }
  throw new Error(`${path} is longer than ${maxBytes} bytes`);
}
