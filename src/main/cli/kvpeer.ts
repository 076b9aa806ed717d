#!/usr/bin/env node
// The entry point of the `kvpeer` command.

import { paramsCommand } from './params.js';
import { makeProgram, runProgram } from './program.js';
import { replayCommand } from './replay.js';
import { serveCommand } from './serve.js';

const program = makeProgram([
  // The peer is loaded when it is started: help and checks of params need no native code.
  serveCommand(async (options) => {
    const { Peer } = await import('../peer.js');
    return Peer.start(options);
  }),
  replayCommand(),
  paramsCommand(),
]);
await runProgram(program, process.argv);
