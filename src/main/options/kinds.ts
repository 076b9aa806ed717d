// The kinds of option values: how each is written as text, checked, and described.

import { isIPv4, isIPv6 } from 'node:net';
import { z } from 'zod';
import type { FingerprintDescription } from '../hashes/fingerprint.js';
import { parseHost } from '../params/address.js';

/** How one kind of value is read. `T` is what the node works with, `In` what a program may give. */
export interface OptionKind<T, In = T> {
  /** Checks a value of a program or a YAML file; also accepts its own result. */
  readonly schema: z.ZodType<T, In>;
  /** Turns text of a flag or an environment variable into what the schema takes. */
  readonly fromText: (text: string) => unknown;
  /** What is allowed, as the end of a sentence that begins with "must be". */
  readonly allowed: string;
  /** The placeholder in help; undefined for a switch that takes no value. */
  readonly placeholder: string | undefined;
}

const BYTE_UNITS = new Map([
  ['', 1],
  ['b', 1],
  ['ki', 2 ** 10],
  ['kib', 2 ** 10],
  ['mi', 2 ** 20],
  ['mib', 2 ** 20],
  ['gi', 2 ** 30],
  ['gib', 2 ** 30],
  ['ti', 2 ** 40],
  ['tib', 2 ** 40],
  ['kb', 1e3],
  ['mb', 1e6],
  ['gb', 1e9],
  ['tb', 1e12],
]);

/** Reads `65536`, `64KiB`, `1.5GiB`, `10GB`. @returns undefined when it is no whole number of bytes */
export function parseBytes(text: string): number | undefined {
  const match = /^(\d+(?:\.\d+)?)\s*([A-Za-z]*)$/.exec(text.trim());
  if (match === null) return undefined;
  const [, digits, unitName] = match;
  const unit = BYTE_UNITS.get(unitName.toLowerCase());
  if (unit === undefined) return undefined;
  const bytes = Number(digits) * unit;
  return Number.isSafeInteger(bytes) ? bytes : undefined;
}

/** Writes a number of bytes the way `parseBytes` reads it, with the largest unit that fits exactly. */
export function formatBytes(bytes: number): string {
  for (const [name, unit] of [
    ['TiB', 2 ** 40] as const,
    ['GiB', 2 ** 30] as const,
    ['MiB', 2 ** 20] as const,
  ]) {
    if (bytes >= unit && bytes % unit === 0) return `${bytes / unit}${name}`;
  }
  return bytes >= 1024 && bytes % 1024 === 0 ? `${bytes / 1024}KiB` : `${bytes}`;
}

/** A number of bytes, with or without a unit. */
export function bytes(min: number, max: number, multipleOf = 1): OptionKind<number, number | string> {
  const size = z.int().min(min).max(max).multipleOf(multipleOf);
  const text = z.string().transform((value, context) => {
    const found = parseBytes(value);
    if (found === undefined) context.addIssue({ code: 'custom', message: 'no size' });
    return found ?? z.NEVER;
  });
  const multiple = multipleOf === 1 ? '' : `, a multiple of ${multipleOf}`;
  return {
    schema: z.union([size, text.pipe(size)]),
    fromText: (value) => value,
    allowed: `a size from ${formatBytes(min)} to ${formatBytes(max)}${multiple} (65536 or 64KiB)`,
    placeholder: 'BYTES',
  };
}

/** The kind or one word instead of it. */
export function orWord<T, In, W extends string>(
  kind: OptionKind<T, In>,
  word: W,
  meaning: string,
): OptionKind<T | W, In | W> {
  return {
    schema: z.union([z.literal(word), kind.schema]),
    fromText: (text) => (text === word ? word : kind.fromText(text)),
    allowed: `${kind.allowed}, or ${word === '' ? 'empty' : word} (${meaning})`,
    placeholder: kind.placeholder,
  };
}

/** A whole number. */
export function count(min: number, max: number, placeholder = 'N'): OptionKind<number> {
  return {
    schema: z.int().min(min).max(max),
    fromText: numberFromText,
    allowed: `a whole number from ${min} to ${max}`,
    placeholder,
  };
}

/** A power of two. */
export function powerOfTwo(min: number, max: number): OptionKind<number> {
  return {
    ...count(min, max),
    schema: z
      .int()
      .min(min)
      .max(max)
      .refine((value) => Number.isInteger(Math.log2(value))),
    allowed: `a power of two from ${min} to ${max}`,
  };
}

const DAY_MS = 24 * 60 * 60 * 1000;

/** A time in milliseconds. No time is without end: at most a day. */
export function milliseconds(min = 1, max = DAY_MS): OptionKind<number> {
  return { ...count(min, max, 'MS'), allowed: `a whole number of milliseconds from ${min} to ${max}` };
}

/** A part of a whole. */
export function share(): OptionKind<number> {
  return {
    schema: z.number().gt(0).max(1),
    fromText: numberFromText,
    allowed: 'a share above 0, at most 1',
    placeholder: 'SHARE',
  };
}

/** Text of so many bytes of UTF-8. */
export function textOfBytes(min: number, max: number, placeholder = 'TEXT'): OptionKind<string> {
  return {
    schema: z.string().refine((value) => {
      const byteCount = Buffer.byteLength(value);
      return byteCount >= min && byteCount <= max;
    }),
    fromText: (text) => text,
    allowed: `text of ${min} to ${max} bytes`,
    placeholder,
  };
}

/** One of a few words. */
export function oneOf<const W extends readonly [string, ...string[]]>(words: W): OptionKind<W[number]> {
  return {
    schema: z.enum(words),
    fromText: (text) => text,
    allowed: `one of ${words.join(', ')}`,
    placeholder: 'NAME',
  };
}

/** A switch. */
export function onOff(): OptionKind<boolean> {
  return {
    schema: z.boolean(),
    fromText: (text) => SWITCH_WORDS.get(text.toLowerCase()) ?? text,
    allowed: 'true or false',
    placeholder: undefined,
  };
}

const SWITCH_WORDS = new Map([
  ['true', true],
  ['1', true],
  ['yes', true],
  ['on', true],
  ['false', false],
  ['0', false],
  ['no', false],
  ['off', false],
]);

/** An IP address to bind. ZeroMQ resolves no names where it binds; `localhost` is understood as 127.0.0.1. */
export function bindHost(): OptionKind<string> {
  return {
    schema: z.string().refine((value) => value === 'localhost' || isIPv4(value) || isIPv6(value)),
    fromText: (text) => (text.startsWith('[') && text.endsWith(']') ? text.slice(1, -1) : text),
    allowed: 'an IP address of this host, a wildcard address or localhost (a name goes into advertise)',
    placeholder: 'HOST',
  };
}

/** A host that others dial, with or without a port. */
export function dialledAddress(): OptionKind<string> {
  return {
    schema: z.string().refine((value) => splitAdvertise(value) !== undefined),
    fromText: (text) => text,
    allowed: 'HOST:PORT or HOST that other nodes can dial (IPv6 in brackets, no wildcard)',
    placeholder: 'HOST:PORT',
  };
}

/** The parts of an `advertise` value; without a port the bound one is meant. @returns undefined when it is none */
export function splitAdvertise(
  text: string,
): { readonly host: string; readonly port: number | undefined } | undefined {
  const match = /^(\[[^\]]*\]|[^:[\]]+)(?::(\d{1,5}))?$/.exec(text);
  if (match === null) return undefined;
  const host = parseHost(match[1]);
  const portText = match.at(2);
  const port = portText === undefined ? undefined : Number(portText);
  if ('reason' in host || (port !== undefined && (port < 1 || port > 65_535))) return undefined;
  return { host: host.host, port };
}

/** A file that describes model and parallelism, or the description itself. */
export function fingerprintSource(): OptionKind<string | FingerprintDescription> {
  return {
    schema: z.custom<string | FingerprintDescription>(
      (value) => typeof value === 'string' || (typeof value === 'object' && !Array.isArray(value)),
    ),
    fromText: (text) => text,
    allowed: 'a YAML file, or in YAML and API the description as a map',
    placeholder: 'FILE',
  };
}

function numberFromText(text: string): unknown {
  return /^[+-]?\d+(?:\.\d+)?$/.test(text.trim()) ? Number(text) : text;
}
