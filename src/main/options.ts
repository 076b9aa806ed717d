// Options of a node: from flags, environment, a YAML file or a program, by one table (options/table.ts).

import type { Logger } from 'pino';
import type { z } from 'zod';
import { KvpeerError } from './errors.js';
import { nearestName } from './nearest.js';
import { crossChecks } from './options/cross-checks.js';
import { fingerprintOf } from './options/fingerprint.js';
import {
  flagOf,
  isOptionName,
  OPTION_NAMES,
  OPTION_TABLE,
  specOf,
  variableOf,
  type OptionName,
} from './options/table.js';
import { FEATURES, type Feature } from './protocol/messages.js';

export { usableCores } from './options/cores.js';
export { formatBytes, parseBytes, splitAdvertise } from './options/kinds.js';
export { renderOptionsTable } from './options/render.js';
export {
  defaultTextOf,
  flagOf,
  OPTION_GROUPS,
  OPTION_NAMES,
  OPTION_TABLE,
  variableOf,
} from './options/table.js';
export type { OptionGroup, OptionName, OptionSpec } from './options/table.js';

type Table = typeof OPTION_TABLE;
type ServeOnly = 'adminHost' | 'adminPort';

/** Every option with its value: checked, sizes in bytes, times in milliseconds. */
export type ResolvedOptions = { readonly [K in OptionName]: z.output<Table[K]['schema']> };

/** What `Peer.start` takes. Sizes may be numbers of bytes or text like `1GiB`. */
export type PeerOptions = {
  readonly [K in Exclude<OptionName, ServeOnly>]?: z.input<Table[K]['schema']> | undefined;
} & {
  /** Where the node logs to. Default: a logger of its own to standard output, at `logLevel`. */
  readonly logger?: Logger | undefined;
  /**
   * Extensions of the protocol that may be used with other kvpeers. Default: all that this node can offer. Fewer are for
   * tests and for measuring what one of them brings.
   */
  readonly features?: readonly Feature[] | undefined;
};

/** Where the value of an option came from. */
export type OptionOrigin = 'flag' | 'environment' | 'file' | 'default';

export interface OptionSources {
  /** Flags by option name; text as it stands on the command line, `true` and `false` for switches. */
  readonly flags?: Readonly<Record<string, string | boolean | undefined>>;
  /** What stands before the names of flags, for messages: `--peer-` where another program has them too. */
  readonly flagPrefix?: string | undefined;
  /** The environment. An empty variable counts as not set. */
  readonly env?: Readonly<Record<string, string | undefined>>;
  /** The parsed YAML file: a map by option name. */
  readonly yaml?: unknown;
  /** Name of the YAML file, for messages. */
  readonly yamlFile?: string;
}

export interface Resolution {
  readonly options: ResolvedOptions;
  readonly origins: Readonly<Record<OptionName, OptionOrigin>>;
  /** For the log: unknown variables, one sentence each. */
  readonly warnings: readonly string[];
}

/** Variables of this project that are no options. */
const OTHER_VARIABLES = ['KVPEER_CONFIG', 'KVPEER_NIXL_DIR'];

/** Unknown keys of a file that are named one by one: another program's file must not fill the terminal. */
const NAMED_KEYS = 20;

interface Given {
  readonly value: unknown;
  readonly origin: OptionOrigin;
  /** How the user wrote the name: `--port`, `KVPEER_PORT`, `port in kvpeer.yaml`. */
  readonly label: string;
}

/**
 * Merges the sources: flags, then `KVPEER_*`, then vLLM's own variables, then the YAML file, then defaults.
 *
 * @throws KVPEER_INVALID_OPTION naming every wrong option with value, reason and remedy; also for an unknown flag or
 *   YAML key. An unknown `KVPEER_*` variable is a warning, since the environment is shared with other programs.
 */
export function resolveOptions(sources: OptionSources): Resolution {
  const faults: string[] = [];
  const warnings: string[] = [];
  const given = new Map<OptionName, Given>();
  addYaml(sources, given, faults);
  addEnvironment(sources.env ?? {}, given, warnings);
  addFlags(sources, given, faults);
  const options = check(given, faults);
  const origins = Object.fromEntries(
    OPTION_NAMES.map((name) => [name, given.get(name)?.origin ?? 'default']),
  );
  return { options, origins: origins as Record<OptionName, OptionOrigin>, warnings };
}

/**
 * Checks what a program gave to `Peer.start` and fills in the defaults. Accepts its own result.
 *
 * @throws KVPEER_INVALID_OPTION naming every wrong option with value, reason and remedy
 */
export function validateOptions(partial: PeerOptions = {}): ResolvedOptions {
  const asked: unknown = partial;
  if (typeof asked !== 'object' || asked === null || Array.isArray(asked)) {
    throw new KvpeerError(
      'KVPEER_INVALID_OPTION',
      `the options are ${show(asked)}; give an object like { port: 5710 }, or nothing`,
    );
  }
  const faults: string[] = [];
  const given = new Map<OptionName, Given>();
  for (const [name, value] of Object.entries(partial)) {
    if (value === undefined) continue;
    if (name === 'logger') faults.push(...loggerFaults(value));
    else if (name === 'features') faults.push(...featureFaults(value));
    else if (isOptionName(name)) given.set(name, { value, origin: 'flag', label: name });
    else faults.push(unknown(`the option ${name}`, name, OPTION_NAMES));
  }
  return check(given, faults);
}

function featureFaults(features: unknown): readonly string[] {
  const known: readonly string[] = FEATURES;
  if (!Array.isArray(features) || !features.every((feature) => typeof feature === 'string')) {
    return [`features is ${show(features)}; it must be a list of names, of ${known.join(', ')}`];
  }
  return features
    .filter((feature) => !known.includes(feature))
    .map((feature) => unknown(`the feature ${feature}`, feature, known));
}

const LOG_METHODS = ['debug', 'info', 'warn', 'error', 'fatal', 'child'] as const;

/** What is no logger would be found out by the first warning, long after the start. */
function loggerFaults(logger: unknown): readonly string[] {
  const methods = (typeof logger === 'object' && logger !== null ? logger : {}) as Record<string, unknown>;
  const missing = LOG_METHODS.filter((name) => typeof methods[name] !== 'function');
  if (missing.length === 0) return [];
  return [`logger has no ${missing.join(', ')}; give a pino logger, or leave it out`];
}

function addYaml({ yaml, yamlFile }: OptionSources, given: Map<OptionName, Given>, faults: string[]): void {
  if (yaml === undefined || yaml === null) return;
  const file = yamlFile ?? 'the YAML file';
  if (typeof yaml !== 'object' || Array.isArray(yaml)) {
    faults.push(`${file} holds no map; write one option per line, like "port: 5710"`);
    return;
  }
  let unknownCount = 0;
  for (const [key, value] of Object.entries(yaml)) {
    if (isOptionName(key)) {
      if (value !== null) given.set(key, { value, origin: 'file', label: `${key} in ${file}` });
      continue;
    }
    unknownCount += 1;
    if (unknownCount <= NAMED_KEYS) faults.push(unknown(`the key ${cut(key)} in ${file}`, key, OPTION_NAMES));
  }
  if (unknownCount > NAMED_KEYS) {
    faults.push(`${file} has ${unknownCount - NAMED_KEYS} more unknown keys; is it the right file?`);
  }
}

function addEnvironment(
  env: Readonly<Record<string, string | undefined>>,
  given: Map<OptionName, Given>,
  warnings: string[],
): void {
  const known = new Map(OPTION_NAMES.map((name) => [variableOf(name), name]));
  for (const name of OPTION_NAMES) {
    const spec = specOf(name);
    for (const label of [variableOf(name), spec.fallbackVariable]) {
      const text = label === undefined ? undefined : env[label];
      if (label === undefined || text === undefined || text === '') continue;
      given.set(name, { value: spec.fromText(text), origin: 'environment', label });
      break;
    }
  }
  for (const variable of Object.keys(env)) {
    if (!variable.startsWith('KVPEER_') || known.has(variable) || OTHER_VARIABLES.includes(variable))
      continue;
    warnings.push(unknown(`the variable ${variable}`, variable, [...known.keys(), ...OTHER_VARIABLES]));
  }
}

function addFlags(
  { flags = {}, flagPrefix = '--' }: OptionSources,
  given: Map<OptionName, Given>,
  faults: string[],
): void {
  for (const [name, flag] of Object.entries(flags)) {
    if (flag === undefined) continue;
    if (!isOptionName(name)) {
      faults.push(unknown(`the flag ${name}`, name, OPTION_NAMES.map(flagOf)));
      continue;
    }
    const value = typeof flag === 'string' ? specOf(name).fromText(flag) : flag;
    given.set(name, { value, origin: 'flag', label: flagOf(name).replace('--', flagPrefix) });
  }
}

function check(given: ReadonlyMap<OptionName, Given>, faults: string[]): ResolvedOptions {
  const values: Partial<Record<OptionName, unknown>> = {};
  for (const name of OPTION_NAMES) {
    const spec = specOf(name);
    const found = given.get(name);
    if (found === undefined) {
      values[name] = spec.defaultOf();
      continue;
    }
    const result = spec.schema.safeParse(found.value);
    if (result.success) values[name] = result.data;
    else faults.push(`${found.label} is ${show(found.value)}; it must be ${spec.allowed}`);
  }
  if (faults.length > 0) throw new KvpeerError('KVPEER_INVALID_OPTION', faults.join('\n'));
  const options = settleLocalhost(settleFingerprint(values as ResolvedOptions, given));
  const broken = crossChecks(options).map((fault) => {
    const [name, other] = fault.names.map((option) => given.get(option)?.label ?? `${option} (default)`);
    return fault.text(name, other);
  });
  if (broken.length > 0) throw new KvpeerError('KVPEER_INVALID_OPTION', broken.join('\n'));
  return options;
}

/** Resolved options have the fingerprint itself. */
function settleFingerprint(options: ResolvedOptions, given: ReadonlyMap<OptionName, Given>): ResolvedOptions {
  const { fingerprint, fingerprintFrom } = options;
  if (fingerprintFrom === '') return options;
  const label = given.get('fingerprintFrom')?.label ?? 'fingerprintFrom';
  if (fingerprint !== '') {
    const other = given.get('fingerprint')?.label ?? 'fingerprint';
    throw new KvpeerError(
      'KVPEER_INVALID_OPTION',
      `${other} and ${label} exclude each other; give one of them`,
    );
  }
  const found = fingerprintOf(fingerprintFrom, label);
  if ('fault' in found) throw new KvpeerError('KVPEER_INVALID_OPTION', found.fault);
  return { ...options, fingerprint: found.fingerprint, fingerprintFrom: '' };
}

/** ZeroMQ binds addresses only, but vLLM knows a node by the very text of its host: bind one, advertise the other. */
function settleLocalhost(options: ResolvedOptions): ResolvedOptions {
  const adminHost = options.adminHost === 'localhost' ? '127.0.0.1' : options.adminHost;
  if (options.host !== 'localhost') return { ...options, adminHost };
  return { ...options, adminHost, host: '127.0.0.1', advertise: options.advertise || 'localhost' };
}

function unknown(what: string, name: string, known: readonly string[]): string {
  const near = nearestName(name, known);
  return `${what} is unknown; ${near === undefined ? 'see kvpeer serve --help for all options' : `did you mean ${near}?`}`;
}

function show(value: unknown): string {
  if (typeof value === 'bigint' || typeof value === 'symbol') return value.toString();
  let text: unknown;
  try {
    text = JSON.stringify(value);
  } catch {
    // An object that contains itself, or one that throws when it is read.
  }
  return typeof text === 'string' ? cut(text) : typeof value;
}

function cut(text: string): string {
  return text.length > 100 ? `${text.slice(0, 100)}…` : text;
}
