// How an operation's end on the rings reads to those who asked: undefined for success, else a Failure.

import { Outcome } from '../../shared/operations.js';
import { CLOSED } from './operations-in-flight.js';
import type { Failure } from './shard-client.js';

const BUSY: Failure = { code: 'KVPEER_BUSY' };
const CLOSED_FAILURE: Failure = { code: 'KVPEER_CLOSED' };
const LOST: Failure = { code: 'KVPEER_WORKER_LOST' };

export function failureOf(end: Outcome | typeof CLOSED | 'busy' | 'closed'): Failure | undefined {
  if (end === Outcome.Ok) return undefined;
  if (end === Outcome.WorkerLost) return LOST;
  if (end === CLOSED || end === 'closed') return CLOSED_FAILURE;
  if (end === 'busy') return BUSY;
  return { code: 'outcome', outcome: end };
}
