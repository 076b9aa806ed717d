// Where the conformance harness and its Python are; scripts/test-vllm.mjs has prepared both.

function fromEnvironment(name: string): string {
  const value = process.env[name];
  if (value === undefined || value === '') throw new Error(`${name} is not set: run npm run test:vllm`);
  return value;
}

export function conformanceFolder(): string {
  return fromEnvironment('KVPEER_CONFORMANCE_DIR');
}

export function conformancePython(): string {
  return fromEnvironment('KVPEER_CONFORMANCE_PYTHON');
}
