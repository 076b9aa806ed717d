// The log of a node: one JSON object per line, through pino.

import { pino, type DestinationStream, type Level, type Logger } from 'pino';
import { standardOutput } from './standard-output.js';

/** Where a peer's NIXL metadata could stand in a record. Damaged or secret, it has no place in a log. */
const METADATA_PATHS = ['agent_metadata', 'agentMetadata', 'metadata'].flatMap((key) => [
  key,
  `*.${key}`,
  `*.*.${key}`,
]);

/**
 * Makes the root logger of a node. Parts of the node take `logger.child({ part: 'session', peer })`.
 *
 * @param destination default: standard output, written at once, so that the last lines of a crash are there
 */
export function createLogger(level: Level | 'silent', destination?: DestinationStream): Logger {
  const options = {
    name: 'kvpeer',
    level,
    timestamp: pino.stdTimeFunctions.isoTime,
    base: { pid: process.pid },
    redact: { paths: METADATA_PATHS, censor: '[not logged]' },
    formatters: {
      level: (label: string) => ({ level: label }),
      log: withoutBytes,
    },
  };
  // Left to itself pino writes in the background: a fatal line, written at once, then overtakes earlier ones, and lines
  // that are still on their way are lost with the process.
  return pino(options, destination ?? standardOutput());
}

/** Keys, blocks and messages are told by their length: bytes are no reading matter, and may be large. */
function withoutBytes(fields: Record<string, unknown>): Record<string, unknown> {
  const isClean = !Object.values(fields).some((value) => ArrayBuffer.isView(value));
  if (isClean) return fields;
  return Object.fromEntries(
    Object.entries(fields).map(([key, value]) => [
      key,
      ArrayBuffer.isView(value) ? `<${value.byteLength} bytes>` : value,
    ]),
  );
}
