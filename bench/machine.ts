// Where and with what a run was made.

import { readFileSync } from 'node:fs';
import { availableParallelism, cpus, loadavg, release, totalmem } from 'node:os';

import { packageRoot, resolveNixl } from '../src/shared/nixl-dir.js';

export interface MachineFacts {
  readonly machine: {
    readonly processor: string;
    readonly cores: number;
    readonly memoryGib: number;
    readonly kernel: string;
    readonly loadBefore: number;
  };
  readonly versions: Readonly<Record<'kvpeer' | 'node' | 'zeromq' | 'piscina' | 'nixl', string>>;
  /** ISO 8601. */
  readonly date: string;
}

export function machineFacts(): MachineFacts {
  const nixl = resolveNixl();
  return {
    machine: {
      processor: cpus().at(0)?.model ?? 'unknown',
      cores: availableParallelism(),
      memoryGib: Math.round(totalmem() / 2 ** 30),
      kernel: release(),
      loadBefore: Math.round(loadavg()[0] * 100) / 100,
    },
    versions: {
      kvpeer: versionOf('package.json'),
      node: process.version,
      zeromq: versionOf('node_modules/zeromq/package.json'),
      piscina: versionOf('node_modules/piscina/package.json'),
      nixl: nixl.kind === 'missing' ? 'missing' : nixl.version,
    },
    date: new Date().toISOString(),
  };
}

function versionOf(file: string): string {
  try {
    return (JSON.parse(readFileSync(`${packageRoot}/${file}`, 'utf8')) as { version: string }).version;
  } catch {
    return 'unknown';
  }
}
