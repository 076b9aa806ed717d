// Reads a configuration file as text, at most as much of it as a configuration can be.

import { createReadStream } from 'node:fs';

/** Every option written out is 4 KiB; YAML of 100 MB takes 15 s and 700 MB of memory before its first key is looked at. */
export const MAX_CONFIG_BYTES = 1024 * 1024;

/**
 * The text of a file, a pipe or a device, decoded as UTF-8.
 *
 * @throws the error of the file system, or one that says that there is more than MAX_CONFIG_BYTES
 */
export async function readConfigText(file: string): Promise<string> {
  const chunks: Buffer[] = [];
  let byteCount = 0;
  // `end` is the last byte that is read: one more than allowed shows that there is more.
  for await (const chunk of createReadStream(file, { end: MAX_CONFIG_BYTES })) {
    chunks.push(chunk as Buffer);
    byteCount += (chunk as Buffer).length;
  }
  if (byteCount > MAX_CONFIG_BYTES) {
    throw new Error(`it is longer than ${MAX_CONFIG_BYTES} bytes, which no configuration is`);
  }
  return Buffer.concat(chunks).toString('utf8');
}
