// What the sidecar itself answers, in the shapes of the reference.

import { STATUS_CODES, type ServerResponse } from 'node:http';

const TYPES = {
  400: 'BadRequestError',
  502: 'BadGateway',
  503: 'ServiceUnavailable',
} as const;

export type ErrorStatus = keyof typeof TYPES;

/** An error in the shape of the OpenAI API as vLLM writes it. */
export function answerError(response: ServerResponse, status: ErrorStatus, message: string): void {
  const body = JSON.stringify({ object: 'error', message, type: TYPES[status], param: '', code: status });
  answer(response, status, 'application/json', body);
}

/** Plain text, or nothing. */
export function answerText(response: ServerResponse, status: number, body: string): void {
  answer(response, status, body === '' ? undefined : 'text/plain; charset=utf-8', body);
}

function answer(
  response: ServerResponse,
  status: number,
  contentType: string | undefined,
  body: string,
): void {
  if (response.headersSent || response.destroyed) return;
  if (contentType !== undefined) response.setHeader('content-type', contentType);
  response.setHeader('content-length', Buffer.byteLength(body));
  response.statusCode = status;
  // A head that could not be sent may have left its own.
  response.statusMessage = STATUS_CODES[status] ?? '';
  response.end(body);
}
