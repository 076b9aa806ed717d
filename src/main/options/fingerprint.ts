// Where a node's fingerprint comes from: verbatim, computed from a description, or learned from the first peer.

import { readFileSync } from 'node:fs';

import { parse as parseYaml } from 'yaml';
import { ZodError } from 'zod';

import { configFingerprint, type FingerprintDescription } from '../hashes/fingerprint.js';

/** The value of `fingerprint` that stands for: take over the one of the first peer that has one. */
export const TRUST_FIRST = 'trust-first';

/**
 * The fingerprint of a description, or of the YAML file that holds it.
 *
 * @param from   a description, or the name of a file
 * @param label  how the user wrote the option, for the fault
 */
export function fingerprintOf(
  from: string | FingerprintDescription,
  label: string,
): { readonly fingerprint: string } | { readonly fault: string } {
  try {
    const description: unknown = typeof from === 'string' ? parseYaml(readFileSync(from, 'utf8')) : from;
    // The schema inside decides; what is not a description is named by field below.
    return { fingerprint: configFingerprint(description as FingerprintDescription) };
  } catch (error) {
    const where = typeof from === 'string' ? `${label} (${from})` : label;
    if (error instanceof ZodError) {
      const faults = error.issues.map((issue) => `${issue.path.join('.') || 'it'}: ${issue.message}`);
      return { fault: `${where} is no description of a model and its parallelism: ${faults.join('; ')}` };
    }
    const reason = error instanceof Error ? error.message : String(error);
    return { fault: `${where} cannot be read as YAML: ${reason}; correct it, or give fingerprint itself` };
  }
}
