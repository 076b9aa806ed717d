// The loop that keeps a collection equal to the server's, over scripted answers.

import { describe, expect, test } from 'vitest';

import {
  KubeFailure,
  ListWatch,
  type Collection,
  type KubeList,
  type KubeObject,
} from '../../src/main/sidecar/list-watch.js';

type Watch = (onEvent: (type: string, object: KubeObject) => void) => void | Promise<void>;

/** Answers in order; after the last one the watch stays open until it is closed. */
class Script implements Collection {
  readonly calls: string[] = [];
  readonly pauses: number[] = [];
  readonly told: string[] = [];
  readonly names: string[][] = [];
  readonly #lists: (KubeList | Error)[];
  readonly #watches: (Watch | Error)[];
  #markIdle: () => void = () => undefined;
  readonly idle = new Promise<void>((resolve) => {
    this.#markIdle = resolve;
  });

  constructor(lists: (KubeList | Error)[], watches: (Watch | Error)[]) {
    this.#lists = lists;
    this.#watches = watches;
  }

  list(): Promise<KubeList> {
    this.calls.push('list');
    const next = this.#lists.shift() ?? new Error('no list left');
    return next instanceof Error ? Promise.reject(next) : Promise.resolve(next);
  }

  async watch(
    version: string,
    onEvent: (type: string, object: KubeObject) => void,
    signal: AbortSignal,
  ): Promise<void> {
    this.calls.push(`watch ${version}`);
    const next = this.#watches.shift();
    if (next instanceof Error) throw next;
    if (next !== undefined) {
      await next(onEvent);
      return;
    }
    this.#markIdle();
    await new Promise((_, reject) => {
      signal.addEventListener('abort', () => {
        reject(new Error('aborted'));
      });
    });
  }

  /** Runs until the script is at its end. */
  async play(): Promise<this> {
    const listWatch = new ListWatch(this, {
      onChange: (objects) => this.names.push(objects.map((object) => object.metadata?.name ?? '?')),
      onLost: (reason) => this.told.push(`lost: ${reason}`),
      onFound: () => this.told.push('found'),
      wait: (ms) => {
        this.pauses.push(ms);
        return Promise.resolve();
      },
      jitter: () => 1,
    });
    await this.idle;
    await listWatch.close();
    return this;
  }
}

const object = (name: string, version: string): KubeObject => ({
  metadata: { name, resourceVersion: version },
});
const listOf = (version: string, ...names: string[]): KubeList => ({
  resourceVersion: version,
  items: names.map((name) => object(name, version)),
});
const gone = { code: 410, message: 'too old' };

describe('a collection', () => {
  test('is listed once and then followed from the last version seen', async () => {
    const script = await new Script(
      [listOf('5', 'a')],
      [
        (onEvent) => {
          onEvent('ADDED', object('b', '6'));
          onEvent('MODIFIED', object('a', '7'));
          onEvent('DELETED', object('b', '8'));
          onEvent('BOOKMARK', { metadata: { resourceVersion: '9' } });
        },
      ],
    ).play();
    expect(script.calls).toEqual(['list', 'watch 5', 'watch 9']);
    expect(script.names).toEqual([['a'], ['a', 'b'], ['a', 'b'], ['a']]);
    expect(script.pauses).toEqual([]);
  });

  test('is listed anew, at once and in silence, when its version is gone', async () => {
    const script = await new Script(
      [listOf('5', 'a'), listOf('50', 'b')],
      [
        (onEvent) => {
          onEvent('ERROR', gone as KubeObject);
          onEvent('ADDED', object('late', '51'));
        },
      ],
    ).play();
    expect(script.calls).toEqual(['list', 'watch 5', 'list', 'watch 50']);
    expect(script.names).toEqual([['a'], ['b']]);
    expect(script.told).toEqual([]);
  });

  test('that is gone again and again is asked for ever more slowly', async () => {
    const isGone = new KubeFailure('gone', 410);
    const lists = Array.from({ length: 5 }, () => listOf('5', 'a'));
    const script = await new Script(lists, [isGone, isGone, isGone, isGone]).play();
    expect(script.pauses).toEqual([500, 1000, 2000]);
    expect(script.told).toEqual(['lost: gone', 'found', 'lost: gone', 'found', 'lost: gone', 'found']);
  });

  test('that cannot be had is told once, tried again with pauses of at most 30 s, and told when it is back', async () => {
    const refusals = Array.from({ length: 10 }, () => new KubeFailure('status 403: no', 403));
    const script = await new Script([...refusals, listOf('5', 'a')], []).play();
    expect(script.pauses).toEqual([500, 1000, 2000, 4000, 8000, 16000, 30000, 30000, 30000]);
    expect(script.told).toEqual(['lost: status 403: no', 'found']);
  });

  test('whose watches end at once, without anything new, is not asked in a tight loop', async () => {
    const end: Watch = () => undefined;
    const script = await new Script([listOf('5', 'a')], [end, end, end, end]).play();
    expect(script.calls.filter((call) => call === 'list')).toHaveLength(1);
    expect(script.pauses).toEqual([500, 1000, 2000]);
  });

  test('whose watch sends an object without name or version is listed anew', async () => {
    const script = await new Script(
      [listOf('5', 'a'), listOf('6', 'b')],
      [
        (onEvent) => {
          onEvent('ADDED', {});
        },
      ],
    ).play();
    expect(script.calls).toEqual(['list', 'watch 5', 'list', 'watch 6']);
    expect(script.told[0]).toContain('no name or version');
  });

  test('keeps its objects while the server is away', async () => {
    const away = new KubeFailure('connect ECONNREFUSED', undefined);
    const script = await new Script([listOf('5', 'a'), away, away, listOf('9', 'a', 'b')], [away]).play();
    expect(script.names).toEqual([['a'], ['a', 'b']]);
  });
});
