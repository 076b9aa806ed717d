// The command `kvpeer params check`: says whether kv_transfer_params are legal and shows what an engine would get.

import { readFile } from 'node:fs/promises';
import { text } from 'node:stream/consumers';
import { Command, InvalidArgumentError, Option } from 'commander';
import { isSafeNumber, LosslessNumber, parse, stringify } from 'lossless-json';
import {
  canonicalParams,
  formatHostPort,
  formatIssue,
  parseHostPort,
  parseParams,
  validateLegs,
  type ParamsIssue,
  type ParamsResult,
  type ParseParamsOptions,
  type PeerAddress,
} from '../params/index.js';
import { EXIT_FAILED, EXIT_OK, EXIT_USAGE } from './exit-codes.js';

interface CheckFlags {
  readonly strict: boolean;
  readonly connector: 'offloading' | 'multi';
  readonly self?: readonly PeerAddress[];
  readonly decode?: string;
  readonly json: boolean;
}

/** What the command reads from and writes to. */
export interface ParamsCommandIo {
  readonly read: (file: string) => Promise<string>;
  readonly out: (line: string) => void;
  readonly err: (line: string) => void;
  readonly exit: (code: number) => void;
}

const PROCESS_IO: ParamsCommandIo = {
  read: (file) => (file === '-' ? text(process.stdin) : readFile(file, 'utf8')),
  out: (line) => {
    process.stdout.write(`${line}\n`);
  },
  err: (line) => {
    process.stderr.write(`${line}\n`);
  },
  exit: (code) => {
    process.exitCode = code;
  },
};

/** The command `params` with its subcommand `check`. */
export function paramsCommand(io: ParamsCommandIo = PROCESS_IO): Command {
  const check = new Command('check')
    .summary('check kv_transfer_params, alone or in a request body')
    .description(
      'Checks kv_transfer_params by every rule and prints what is wrong, where, and what to do.\n' +
        'FILE holds the params or a whole request body (its kv_transfer_params, also inside\n' +
        'sampling_params.extra_args, are checked); - reads standard input.',
    )
    .argument('<file>', 'a JSON file, or - for standard input')
    .option('--strict', 'unknown keys, keys of other connectors and a source without an id are errors', false)
    .addOption(
      new Option('--connector <name>', "multi: the engine also runs NIXL's own connector")
        .choices(['offloading', 'multi'])
        .default('offloading'),
    )
    .option('--self <host:port>', 'address of the computing node, may be repeated', collectAddress)
    .option('--decode <file>', 'the decode leg; FILE is then the prefill leg, and both are checked together')
    .option('--json', 'print the result as JSON', false)
    .addHelpText(
      'after',
      '\nExit status: 0 legal (warnings may be printed), 1 illegal, 2 the file cannot be read or is not JSON.\n\n' +
        'Examples:\n' +
        '  kvpeer params check request.json\n' +
        '  kvpeer params check prefill.json --decode decode.json --strict\n' +
        `  echo '{"remote_decoder": {"kv_request_id": "8a1c"}}' | kvpeer params check -`,
    )
    .action(async (file: string, flags: CheckFlags) => {
      io.exit(await checkFiles(file, flags, io));
    });
  return new Command('params').summary('check kv_transfer_params').addCommand(check);
}

function collectAddress(value: string, earlier: readonly PeerAddress[] = []): readonly PeerAddress[] {
  const address = parseHostPort(value);
  if ('reason' in address) throw new InvalidArgumentError(`It ${address.reason}.`);
  return [...earlier, address];
}

interface Leg {
  readonly file: string;
  readonly result: ParamsResult;
}

async function checkFiles(file: string, flags: CheckFlags, io: ParamsCommandIo): Promise<number> {
  const checked: Leg[] = [];
  const legs: Leg[] = [];
  for (const name of flags.decode === undefined ? [file] : [file, flags.decode]) {
    let places: readonly Place[];
    try {
      places = placesOf(readJson(await io.read(name)));
    } catch (error) {
      const reason = error instanceof Error ? error.message : String(error);
      io.err(`${name}: cannot be read as JSON: ${reason}`);
      return EXIT_USAGE;
    }
    const options: ParseParamsOptions = {
      strict: flags.strict,
      connector: flags.connector,
      self: flags.self,
    };
    const results = places.map(({ where, params }) => ({
      file: name + where,
      result: parseParams(params, options),
    }));
    checked.push(...results);
    legs.push(results[0]);
  }
  const together = checkLegs(legs);
  if (flags.json) io.out(stringify(toJson(checked, together), null, 2) ?? '');
  else printLegs(checked, together, io);
  return together.length === 0 && checked.every((leg) => leg.result.ok) ? EXIT_OK : EXIT_FAILED;
}

/** What passes through keeps its digits: a number that a double would change is another value until it is printed. */
function readJson(text: string): unknown {
  return parse(text, undefined, { parseNumber, onDuplicateKey: ({ newValue }) => newValue });
}

function parseNumber(digits: string): unknown {
  if (isSafeNumber(digits)) return Number(digits);
  // The time to read an integer grows with the square of its length.
  return /^-?\d{1,400}$/.test(digits) ? BigInt(digits) : new LosslessNumber(digits);
}

function checkLegs(legs: readonly Leg[]): readonly ParamsIssue[] {
  if (legs.length < 2) return [];
  const [prefill, decode] = legs.map((leg) => leg.result);
  return prefill.ok && decode.ok ? validateLegs(prefill.params, decode.params) : [];
}

function toJson(legs: readonly Leg[], together: readonly ParamsIssue[]): unknown {
  return {
    files: legs.map(({ file, result }) =>
      result.ok
        ? { file, ok: true, errors: [], warnings: result.warnings, canonical: canonicalParams(result.params) }
        : { file, ok: false, errors: result.errors, warnings: result.warnings },
    ),
    legs: together,
  };
}

function printLegs(legs: readonly Leg[], together: readonly ParamsIssue[], io: ParamsCommandIo): void {
  for (const { file, result } of legs) {
    for (const issue of [...(result.ok ? [] : result.errors), ...result.warnings])
      printIssue(file, issue, io);
    if (!result.ok) {
      io.out(`${file}: illegal, ${result.errors.length} errors`);
      continue;
    }
    const sources = result.params.remoteKvSource ?? [];
    io.out(`${file}: legal, ${result.params.combination}`);
    if (sources.length > 1) io.out(`  sources in order: ${sources.map(formatHostPort).join(', ')}`);
    io.out(`  an engine gets: ${stringify(canonicalParams(result.params)) ?? ''}`);
  }
  for (const issue of together) printIssue('both legs', issue, io);
}

function printIssue(file: string, issue: ParamsIssue, io: ParamsCommandIo): void {
  io.err(`${file}: ${issue.severity} ${issue.code}: ${formatIssue(issue)}`);
}

interface Place {
  /** After the name of the file. */
  readonly where: string;
  readonly params: unknown;
}

/** The params inside a request body, in every place where vLLM's APIs read them, or the value itself. */
function placesOf(value: unknown): readonly Place[] {
  if (!isObject(value)) return [{ where: '', params: value }];
  const places: Place[] = [];
  if (Object.hasOwn(value, 'kv_transfer_params')) {
    places.push({ where: '', params: value.kv_transfer_params });
  }
  const sampling = value.sampling_params;
  const extra = isObject(sampling) ? sampling.extra_args : undefined;
  if (isObject(extra) && Object.hasOwn(extra, 'kv_transfer_params')) {
    const where = places.length === 0 ? '' : ' (sampling_params.extra_args)';
    places.push({ where, params: extra.kv_transfer_params });
  }
  if (places.length > 0) return places;
  const isBody = BODY_KEYS.some((key) => Object.hasOwn(value, key));
  return [{ where: '', params: isBody ? undefined : value }];
}

/** One of them is in the body of every API; without params there is nothing to check in it. */
const BODY_KEYS = ['model', 'messages', 'prompt', 'input', 'token_ids', 'sampling_params'];

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
