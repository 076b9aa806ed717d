#!/usr/bin/env node
// The entry point of the `kvpeer` command.

import type { PeerStarter } from '../peer-api.js';
import { paramsCommand } from './params.js';
import { makeProgram, runProgram } from './program.js';
import { pullCommand } from './pull.js';
import { replayCommand } from './replay.js';
import { serveCommand } from './serve.js';
import { sidecarCommand } from './sidecar.js';

/** The peer is loaded when it is started: help and checks of params need no native code. */
const start: PeerStarter['start'] = async (options) => {
  const { Peer } = await import('../peer.js');
  return Peer.start(options);
};

const program = makeProgram([
  serveCommand(start),
  pullCommand(start),
  sidecarCommand(start),
  replayCommand(),
  paramsCommand(),
]);
await runProgram(program, process.argv);
