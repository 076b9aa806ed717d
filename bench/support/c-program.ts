// The small programs of ../shared/baselines and bench/native: built once into the cache when compiler and headers are there.

import { execFile } from 'node:child_process';
import { existsSync, mkdirSync, statSync } from 'node:fs';
import { promisify } from 'node:util';

import { packageRoot } from '../../src/shared/nixl-dir.js';

const run = promisify(execFile);

export type CProgram =
  { readonly kind: 'ready'; readonly path: string } | { readonly kind: 'missing'; readonly reason: string };

/** Folder of the baselines' sources. */
export function baselinesFolder(): string {
  return process.env.KVPEER_BASELINES_DIR ?? `${packageRoot}/../shared/baselines`;
}

/** @param libraries for instance `-lzmq` */
export async function cProgram(name: string, libraries: readonly string[] = []): Promise<CProgram> {
  const source = `${baselinesFolder()}/${name}.c`;
  if (!existsSync(source)) {
    return { kind: 'missing', reason: `${name}.c is not there; KVPEER_BASELINES_DIR names its folder` };
  }
  const needs = libraries.includes('-lzmq') ? 'gcc and the headers of libzmq (libzmq3-dev)' : 'gcc';
  return build(name, source, needs, ['gcc', '-O2'], libraries);
}

/** One of bench/native, which may include headers of native/. */
export function ownProgram(name: string): Promise<CProgram> {
  const source = `${packageRoot}/bench/native/${name}.cc`;
  const compiler = ['g++', '-std=gnu++20', '-O2', `-I${packageRoot}/native`];
  return build(name, source, 'g++', compiler, ['-ldl', '-lpthread']);
}

async function build(
  name: string,
  source: string,
  needs: string,
  [compiler, ...flags]: readonly string[],
  libraries: readonly string[],
): Promise<CProgram> {
  const folder = `${packageRoot}/.cache/bench`;
  const path = `${folder}/${name}`;
  if (existsSync(path) && statSync(path).mtimeMs > statSync(source).mtimeMs) return { kind: 'ready', path };
  mkdirSync(folder, { recursive: true });
  try {
    await run(compiler, [...flags, '-o', path, source, ...libraries]);
    return { kind: 'ready', path };
  } catch (error) {
    const text = error instanceof Error ? error.message : String(error);
    const hint = /No such file|ENOENT|cannot find/.test(text) ? `it needs ${needs}` : `${compiler} failed`;
    return { kind: 'missing', reason: `${name} does not build: ${hint}` };
  }
}

/** What `path args` prints: one JSON document. */
export async function jsonOf(
  path: string,
  args: readonly string[],
  env: NodeJS.ProcessEnv = process.env,
): Promise<unknown> {
  const { stdout } = await run(path, args, { env });
  return JSON.parse(stdout);
}
