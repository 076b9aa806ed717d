// Collects what is wrong with kv_transfer_params, and describes values from outside in bounded, printable text.

import { isLosslessNumber } from 'lossless-json';

import { nearestName } from '../nearest.js';
import type { ParamsIssue, ParamsIssueCode } from './types.js';

export type Fields = Readonly<Record<string, unknown>>;

/** Enough to mend a request by; the input comes from outside, so the answer to it is bounded. */
const MAX_FINDINGS = 64;

/** Collects issues; strictness decides whether a doubtful one is an error. */
export class Findings {
  readonly errors: ParamsIssue[] = [];
  readonly warnings: ParamsIssue[] = [];
  readonly strict: boolean;

  constructor(strict: boolean) {
    this.strict = strict;
  }

  readonly error = (code: ParamsIssueCode, path: string, message: string, remedy: string): void => {
    if (this.errors.length === MAX_FINDINGS) return;
    this.errors.push({ severity: 'error', code, path, message, remedy });
  };

  /** Whether another doubt would be dropped: its text need not be made then. */
  get isFullOfDoubt(): boolean {
    return (this.strict ? this.errors : this.warnings).length === MAX_FINDINGS;
  }

  /** A warning, or an error in strict mode. */
  doubt(code: ParamsIssueCode, path: string, message: string, remedy: string): void {
    if (this.strict) this.error(code, path, message, remedy);
    else if (this.warnings.length < MAX_FINDINGS) {
      this.warnings.push({ severity: 'warning', code, path, message, remedy });
    }
  }
}

export function unknownKey(path: string, key: string, known: readonly string[], findings: Findings): void {
  if (findings.isFullOfDoubt) return;
  const near = nearestName(key, known);
  const remedy = near === undefined ? `known keys are ${known.join(', ')}` : `did you mean ${near}?`;
  findings.doubt('UNKNOWN_KEY', path, 'is unknown and is ignored', remedy);
}

export function checkFields(value: unknown, path: string, findings: Findings): value is Fields {
  if (isFields(value)) return true;
  const remedy = 'give an object, or leave the key out';
  findings.error('NOT_AN_OBJECT', path, `is ${describe(value)}, not an object`, remedy);
  return false;
}

export function isFields(value: unknown): value is Fields {
  return typeof value === 'object' && value !== null && !Array.isArray(value) && !isLosslessNumber(value);
}

/** A path that stays one readable line whatever the key is. */
export function join(path: string, key: string): string {
  return /^[A-Za-z_][A-Za-z0-9_]{0,63}$/.test(key) ? `${path}.${key}` : `${path}[${quote(key)}]`;
}

/** The value in a few words; what comes from outside is cut and escaped. */
export function describe(value: unknown): string {
  if (value === null) return 'null';
  if (Array.isArray(value)) return 'a list';
  // What no double holds, from a reader that keeps all digits.
  if (isLosslessNumber(value) || typeof value === 'bigint') return cut(String(value));
  if (typeof value === 'object') return 'an object';
  if (typeof value === 'string') return quote(value);
  if (typeof value === 'number' || typeof value === 'boolean') return String(value);
  return typeof value === 'undefined' ? 'undefined' : `a ${typeof value}`;
}

function quote(text: string): string {
  return JSON.stringify(cut(text));
}

function cut(text: string): string {
  return text.length > 64 ? `${text.slice(0, 64)}…` : text;
}
