#!/usr/bin/env node
// The entry point of the `kvpeer` command.

import { paramsCommand } from './params.js';
import { makeProgram, runProgram } from './program.js';
import { replayCommand } from './replay.js';

const program = makeProgram([replayCommand(), paramsCommand()]);
await runProgram(program, process.argv);
