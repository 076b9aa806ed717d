#!/usr/bin/env node
// A kvpeer that holds the blocks 0 .. N-1 of the conformance set: the other end for tests and benches of any peer.

import { Command, Option } from 'commander';
import { KvpeerError } from '../errors.js';
import { createLogger } from '../observe/log.js';
import { Peer } from '../peer.js';
import { CONFORMANCE_KEY_BYTES, conformanceBlock, conformanceKeys } from './conformance-set.js';
import { EXIT_CODES_HELP } from './exit-codes.js';
import {
  identityFlags,
  probeOptions,
  standardError,
  wholeNumber,
  type IdentityFlags,
} from './identity-flags.js';
import { runProgram } from './program.js';

/** Blocks that are made between two turns of the event loop. */
const BATCH = 256;
/** More than any test needs, and few enough that the pool's bookkeeping fits its mapping. */
const MAX_COUNT = 10_000_000;

interface Flags extends IdentityFlags {
  readonly count: string;
  readonly seed: string;
  readonly blocks?: string;
}

const command = new Command('conformance-peer')
  .description(
    'Holds the blocks 0 .. N-1 of the conformance set, prints one JSON line when it serves, and ends on SIGTERM.',
  )
  .addOption(new Option('--count <n>', 'blocks to hold').default('0'))
  .addOption(new Option('--seed <text>', 'names keys and contents').default('0'))
  .addOption(
    new Option('--blocks <slots>', 'slots of the pool (default: 4 x count + 256: one peer may pin all)'),
  )
  .addHelpText('after', `\n${EXIT_CODES_HELP}`)
  .action(run);
for (const option of identityFlags()) command.addOption(option);
await runProgram(command, process.argv);

async function run({ count, seed, blocks, ...identity }: Flags): Promise<void> {
  const blockCount = wholeNumber('--count', count, MAX_COUNT);
  const slots =
    blocks === undefined ? 4 * blockCount + 256 : wholeNumber('--blocks', blocks, 4 * MAX_COUNT + 256);
  if (slots < blockCount) {
    throw new KvpeerError(
      'KVPEER_INVALID_OPTION',
      `--blocks ${slots} does not hold --count ${blockCount} blocks`,
    );
  }
  const options = probeOptions(identity, process.env, {
    keyBytes: CONFORMANCE_KEY_BYTES,
    slots,
    host: '127.0.0.1',
  });
  const ended = new Promise<void>((resolve) => {
    process.once('SIGTERM', resolve);
    process.once('SIGINT', resolve);
  });
  const peer = await Peer.start({ ...options, logger: createLogger(options.logLevel, standardError()) });
  await store(peer, seed, blockCount);
  const { address, numBlocks, blockBytes } = peer;
  const ready = { event: 'ready', peer_id: address, num_blocks: numBlocks, block_len: blockBytes, seed };
  process.stdout.write(`${JSON.stringify({ ...ready, count: blockCount })}\n`);
  await ended;
  await peer.close({ drainMs: 0 });
}

async function store(peer: Peer, seed: string, count: number): Promise<void> {
  for (let first = 0; first < count; first += BATCH) {
    const indexes = Array.from({ length: Math.min(BATCH, count - first) }, (_, i) => first + i);
    const reserved = await peer.reserve(conformanceKeys(seed, indexes));
    indexes.forEach((index, i) => {
      reserved.block(i)?.set(conformanceBlock(seed, index, peer.blockBytes));
    });
    await reserved.commit();
  }
}
