// The exit statuses that all commands share.

import { KvpeerError, type ErrorCode } from '../errors.js';

/** Everything went as asked. */
export const EXIT_OK = 0;
/** The command ran and what it did failed or was found wrong. */
export const EXIT_FAILED = 1;
/** The command line, the environment variables or a configuration file are wrong. */
export const EXIT_USAGE = 2;
/** The host lacks something: memory, the NIXL library, the native addon, a free port. */
export const EXIT_ENVIRONMENT = 3;
/** A second signal ended the command before its drain was done. */
export const EXIT_FORCED = 4;

export const EXIT_CODES_HELP = `Exit status:
  0  everything went as asked
  1  the command ran, and something failed or was found wrong
  2  the command line, the environment variables or a configuration file are wrong
  3  the host lacks something: memory, the NIXL library, the native addon, a free port
  4  a second signal ended the command before its drain was done`;

const OF_CODE: Partial<Record<ErrorCode, number>> = {
  KVPEER_INVALID_OPTION: EXIT_USAGE,
  KVPEER_INVALID_ARGUMENT: EXIT_USAGE,
  KVPEER_INVALID_PARAMS: EXIT_USAGE,
  KVPEER_BIND: EXIT_ENVIRONMENT,
  KVPEER_MEMORY: EXIT_ENVIRONMENT,
  KVPEER_NIXL_UNAVAILABLE: EXIT_ENVIRONMENT,
  KVPEER_NATIVE_UNAVAILABLE: EXIT_ENVIRONMENT,
};

/** System errors of binding and mapping that another configuration of the host would mend. */
const ENVIRONMENT_ERRNO = new Set(['EADDRINUSE', 'EADDRNOTAVAIL', 'EACCES', 'ENOMEM', 'EMFILE', 'ENFILE']);

/** The exit status that an error at start-up stands for. */
export function exitCodeOf(error: unknown): number {
  if (error instanceof KvpeerError) return OF_CODE[error.code] ?? EXIT_FAILED;
  const errno = error instanceof Error && 'code' in error ? error.code : undefined;
  return typeof errno === 'string' && ENVIRONMENT_ERRNO.has(errno) ? EXIT_ENVIRONMENT : EXIT_FAILED;
}
