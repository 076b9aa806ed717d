// Metrics that are read from plain numbers of the node when somebody scrapes.

import { Counter, Gauge, type Registry } from 'prom-client';

export function gauge(
  registry: Registry,
  name: string,
  help: string,
  read: () => number | Promise<number>,
): void {
  const metric: Gauge = new Gauge({
    name,
    help,
    registers: [registry],
    collect: async () => {
      metric.set(await read());
    },
  });
}

export function labelled(
  registry: Registry,
  name: string,
  help: string,
  label: string,
  read: () => readonly [string, number][],
): void {
  const metric = new Gauge({
    name,
    help,
    labelNames: [label],
    registers: [registry],
    collect: () => {
      metric.reset();
      for (const [value, count] of read()) metric.set({ [label]: value }, count);
    },
  });
}

/** The node keeps the sums itself, so a scrape replaces the value instead of adding to it. */
export function counter(registry: Registry, name: string, help: string, read: () => number): void {
  const metric: Counter = new Counter({
    name,
    help,
    registers: [registry],
    collect: () => {
      metric.reset();
      metric.inc(read());
    },
  });
}

export function labelledCounter(
  registry: Registry,
  name: string,
  help: string,
  read: () => ReadonlyMap<string, number>,
  label = 'reason',
): void {
  const metric = new Counter({
    name,
    help,
    labelNames: [label],
    registers: [registry],
    collect: () => {
      metric.reset();
      for (const [value, count] of read()) metric.inc({ [label]: value }, count);
    },
  });
}
