// How an error crosses from a peer process to the parent: by its code and its message.
import { ERROR_CODES, KvpeerError, type ErrorCode } from '../../errors.js';

/** The stable code of an error; one without a code is a defect and goes by its own name. */
export function codeOf(error: unknown): string {
  if (error instanceof KvpeerError) return error.code;
  return error instanceof Error ? error.name : 'UNKNOWN';
}

/** The error as it was on the other side. */
export function errorOf({ code, message }: { readonly code: string; readonly message: string }): Error {
  if (isErrorCode(code)) return new KvpeerError(code, message);
  const error = new Error(message);
  error.name = code;
  return error;
}

function isErrorCode(code: string): code is ErrorCode {
  return Object.hasOwn(ERROR_CODES, code);
}
