// The shard client for code that awaits: one promise per operation, failures as errors with a code.

import { KvpeerError } from '../errors.js';
import { Outcome } from '../../shared/operations.js';
import type { Done, Failure } from './shard-client.js';

/** @throws KVPEER_BUSY, KVPEER_WORKER_LOST, KVPEER_CLOSED; KVPEER_OPERATION for an operation that ended in another way */
export function submit<T>(what: string, call: (done: Done<T>) => void): Promise<T> {
  return new Promise((resolve, reject) => {
    call((failure, result) => {
      if (failure) reject(failureError(what, failure));
      else resolve(result);
    });
  });
}

/** As submit(), for operations that always bring a result when they do not fail. */
export async function submitForResult<T>(
  what: string,
  call: (done: Done<T | undefined>) => void,
): Promise<T> {
  const result = await submit(what, call);
  if (result === undefined) throw new Error(`${what} ended without a failure and without a result`);
  return result;
}

export function failureError(what: string, failure: Failure): KvpeerError {
  switch (failure.code) {
    case 'KVPEER_BUSY':
      return new KvpeerError(
        'KVPEER_BUSY',
        `${what}: no room in the rings or the request arena within queueMs; ask again later, send fewer keys at once, or raise --arena-bytes`,
      );
    case 'KVPEER_WORKER_LOST':
      return new KvpeerError(
        'KVPEER_WORKER_LOST',
        `${what}: the worker that ran it died before it was done; ask again, its replacement is starting`,
      );
    case 'KVPEER_CLOSED':
      return new KvpeerError('KVPEER_CLOSED', `${what}: the peer was closed; start a new one`);
    case 'outcome':
      return new KvpeerError(
        'KVPEER_OPERATION',
        `${what}: ended with ${outcomeName(failure.outcome)}; the log of the worker has the reason`,
      );
  }
}

function outcomeName(outcome: Outcome): string {
  return Object.entries(Outcome).find(([, value]) => value === outcome)?.[0] ?? String(outcome);
}
