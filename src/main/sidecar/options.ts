// Options of the sidecar: the reference's flags, environment and YAML under their own names, and a few of ours.

import type { z } from 'zod';
import { KvpeerError } from '../errors.js';
import { nearestName } from '../nearest.js';
import { SIDECAR_OPTIONS, type SidecarOptionName, type SidecarOptionSpec } from './options-table.js';

export { SIDECAR_OPTIONS, type SidecarOptionName } from './options-table.js';

type Table = typeof SIDECAR_OPTIONS;

export type ResolvedSidecarOptions = { readonly [K in SidecarOptionName]: z.output<Table[K]['schema']> };
/** What `createSidecar` takes. */
export type SidecarOptions = {
  readonly [K in SidecarOptionName]?: z.input<Table[K]['schema']> | undefined;
};

export const SIDECAR_OPTION_NAMES = Object.keys(SIDECAR_OPTIONS) as readonly SidecarOptionName[];

export interface SidecarSources {
  /** By option name; text as it stands on the command line, `true` for a switch without a value. */
  readonly flags: Readonly<Record<string, string | boolean | readonly string[] | undefined>>;
  readonly env: Readonly<Record<string, string | undefined>>;
  /** A parsed YAML map by flag name, as the reference reads it. */
  readonly yaml?: unknown;
  readonly yamlFile?: string | undefined;
}

/** The row of an option, without its value type. */
export function sidecarSpecOf(name: SidecarOptionName): SidecarOptionSpec<unknown, unknown> {
  return SIDECAR_OPTIONS[name];
}

/** `modelServerPort` -> `--model-server-port`. */
export function sidecarFlagOf(name: SidecarOptionName): string {
  return `--${kebabOf(name)}`;
}

interface Given {
  readonly value: unknown;
  readonly label: string;
}

/**
 * Merges flags, environment and YAML, in this order of weight.
 *
 * @throws KVPEER_INVALID_OPTION naming everything that is wrong
 */
export function resolveSidecarOptions(sources: SidecarSources): ResolvedSidecarOptions {
  const given = new Map<SidecarOptionName, Given>();
  const faults: string[] = [];
  const { yaml, yamlFile = 'the configuration' } = sources;
  if (yaml !== undefined && yaml !== null) addYaml(yaml, yamlFile, given, faults);
  for (const name of SIDECAR_OPTION_NAMES) {
    const { variable, fromText, isVariableLenient } = sidecarSpecOf(name);
    const text = variable === undefined ? undefined : sources.env[variable];
    if (variable === undefined || text === undefined || text === '') continue;
    const value = fromText(text);
    if (isVariableLenient && typeof value !== 'number') continue;
    given.set(name, { value, label: variable });
  }
  for (const name of SIDECAR_OPTION_NAMES) {
    const flag = sources.flags[name];
    if (flag === undefined) continue;
    const { fromText } = sidecarSpecOf(name);
    given.set(name, { value: typeof flag === 'string' ? fromText(flag) : flag, label: sidecarFlagOf(name) });
  }
  return check(given, faults, 1);
}

/** Checks what a program gave to `createSidecar`. @throws KVPEER_INVALID_OPTION */
export function validateSidecarOptions(options: SidecarOptions): ResolvedSidecarOptions {
  const given = new Map<SidecarOptionName, Given>();
  const faults: string[] = [];
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined) continue;
    if (isName(name)) given.set(name, { value, label: name });
    else faults.push(unknown(`the option ${name}`, name, SIDECAR_OPTION_NAMES));
  }
  return check(given, faults, 0);
}

function addYaml(yaml: unknown, file: string, given: Map<SidecarOptionName, Given>, faults: string[]): void {
  if (typeof yaml !== 'object' || yaml === null || Array.isArray(yaml)) {
    faults.push(`${file} holds no map; write one option per line, like "port: 8000"`);
    return;
  }
  const names = new Map(SIDECAR_OPTION_NAMES.map((name) => [kebabOf(name), name]));
  for (const [key, value] of Object.entries(yaml)) {
    const name = names.get(key);
    if (name === undefined) faults.push(unknown(`the key ${key} in ${file}`, key, [...names.keys()]));
    else if (value !== null) given.set(name, { value, label: `${key} in ${file}` });
  }
}

/** @param lowestPort 0 lets a program take a free port; a command must be told where it is reached */
function check(
  given: ReadonlyMap<SidecarOptionName, Given>,
  faults: string[],
  lowestPort: number,
): ResolvedSidecarOptions {
  const values: Partial<Record<SidecarOptionName, unknown>> = {};
  for (const name of SIDECAR_OPTION_NAMES) {
    const spec = sidecarSpecOf(name);
    const entry = given.get(name);
    if (entry === undefined) {
      values[name] = spec.defaultValue;
      continue;
    }
    const result = spec.schema.safeParse(entry.value);
    if (result.success) values[name] = result.data;
    else faults.push(`${entry.label} is ${show(entry.value)}; it must be ${spec.allowed}`);
  }
  if (faults.length === 0) crossCheck(values as ResolvedSidecarOptions, given, faults, lowestPort);
  if (faults.length > 0) throw new KvpeerError('KVPEER_INVALID_OPTION', faults.join('. '));
  const resolved = values as ResolvedSidecarOptions;
  return { ...resolved, secureServing: resolved.secureProxy ?? resolved.secureServing };
}

const TOP_PORT = 65_535;

function crossCheck(
  options: ResolvedSidecarOptions,
  given: ReadonlyMap<SidecarOptionName, Given>,
  faults: string[],
  lowestPort: number,
): void {
  const { port, modelServerPort, p2pConnectorPort, dataParallelSize } = options;
  const say = (isWrong: boolean, text: string): void => {
    if (isWrong) faults.push(text);
  };
  say(port < lowestPort, '--port is 0; give the port that the router sends to');
  const isFree = port === 0 && dataParallelSize > 1;
  say(isFree, 'port 0 takes one free port; data parallelism needs a block of them, so give the first');
  for (const [flag, base] of [
    ['--port', port],
    ['--model-server-port', modelServerPort],
    ['--p2p-connector-port', p2pConnectorPort],
  ] as const) {
    const isOver = base + dataParallelSize - 1 > TOP_PORT;
    say(
      isOver,
      `${flag} ${base} leaves no room for ${dataParallelSize} ranks; lower it, or --data-parallel-size`,
    );
  }
  const isBoth = given.has('secureProxy') && given.has('secureServing');
  const differ = options.secureProxy !== undefined && options.secureProxy !== options.secureServing;
  say(isBoth && differ, '--secure-proxy and --secure-serving contradict each other; give one of them');
  const isCommand = lowestPort > 0;
  const isNewSpelling = isCommand && options.profile === 'A' && given.has('secureServing');
  say(isNewSpelling, '--secure-serving belongs to profile B; with --profile A write --secure-proxy');
  say(
    options.enableP2pPull,
    '--enable-p2p-pull is for the connector nixlv2; offloading pulls anyway, leave it out',
  );
  const hasNoPause = options.prefillMaxRetries > 0 && options.prefillRetryBackoff <= 0;
  say(hasNoPause, '--prefill-retry-backoff must be above 0 with --prefill-max-retries');
}

function isName(name: string): name is SidecarOptionName {
  return Object.hasOwn(SIDECAR_OPTIONS, name);
}

function kebabOf(name: string): string {
  return name.replaceAll(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);
}

function show(value: unknown): string {
  const text = JSON.stringify(value);
  return text.length > 80 ? `${text.slice(0, 80)}…` : text;
}

function unknown(what: string, name: string, known: readonly string[]): string {
  const nearest = nearestName(name, known);
  const remedy = nearest === undefined ? 'take it out' : `did you mean ${nearest}?`;
  return `${what} is unknown; ${remedy}`;
}
