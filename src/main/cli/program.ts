// The `kvpeer` program: its commands and what all of them share.

import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { Command } from 'commander';
import { packageRoot } from '../../shared/nixl-dir.js';
import { KvpeerError } from '../errors.js';
import { EXIT_CODES_HELP, EXIT_OK, EXIT_USAGE, exitCodeOf } from './exit-codes.js';

/** Makes the program of these commands. Usage errors end with 2, as documented, instead of commander's 1. */
export function makeProgram(commands: readonly Command[]): Command {
  const program = new Command('kvpeer')
    .description('A peer-to-peer KV-cache node for LLM inference.')
    .version(readVersion(), '-V, --version', 'print the version')
    .helpOption('-h, --help', 'print help, also after a command')
    .helpCommand('help [command]', 'print the help of a command')
    .addHelpText('after', `\n${EXIT_CODES_HELP}\n\nkvpeer COMMAND --help says more.`);
  for (const command of commands) program.addCommand(command);
  eachCommand(program, (command) => {
    command.exitOverride((error) => {
      process.exit(error.exitCode === 0 ? EXIT_OK : EXIT_USAGE);
    });
    if (command !== program) command.helpOption('-h, --help', 'print this help');
    command.configureHelp({ helpWidth: 110 });
    command.showHelpAfterError(`(kvpeer ${pathOf(command)}--help shows all options)`);
  });
  return program;
}

/** Runs the program; an error of a command is one line on standard error and its exit status. */
export async function runProgram(program: Command, argv: readonly string[]): Promise<void> {
  try {
    await program.parseAsync(argv);
  } catch (error) {
    const text = error instanceof KvpeerError ? `${error.code}: ${error.message}` : describe(error);
    process.stderr.write(`kvpeer: ${text}\n`);
    process.exitCode = exitCodeOf(error);
  }
}

function describe(error: unknown): string {
  return error instanceof Error ? (error.stack ?? error.message) : String(error);
}

function eachCommand(command: Command, visit: (command: Command) => void): void {
  visit(command);
  for (const child of command.commands) eachCommand(child, visit);
}

/** `params check `, with a blank at the end unless it is the program itself. */
function pathOf(command: Command): string {
  return command.parent === null ? '' : `${pathOf(command.parent)}${command.name()} `;
}

function readVersion(): string {
  const manifest: unknown = JSON.parse(readFileSync(join(packageRoot, 'package.json'), 'utf8'));
  const hasVersion = typeof manifest === 'object' && manifest !== null && 'version' in manifest;
  return hasVersion ? String(manifest.version) : 'unknown';
}
