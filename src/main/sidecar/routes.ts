// Which paths are inference APIs, in every spelling that a profile takes for the same path.

/** `A`: the reference as released in August 2026. `B`: as on its main branch since September 2026. */
export type Profile = 'A' | 'B';

export type InferenceApi = 'chat' | 'completions' | 'responses' | 'messages' | 'generate' | 'sglang-generate';

const APIS: ReadonlyMap<string, InferenceApi> = new Map([
  ['/v1/chat/completions', 'chat'],
  ['/v1/completions', 'completions'],
  ['/v1/responses', 'responses'],
  ['/v1/messages', 'messages'],
  ['/inference/v1/generate', 'generate'],
  ['/generate', 'sglang-generate'],
]);

export interface Target {
  /** Path and query as both legs get them. */
  readonly path: string;
  /** The path alone, decoded where that changes no structure. */
  readonly route: string;
}

/**
 * Reads the target of a request line: origin form or absolute form. `//`, `.` and `..` are resolved (the reference
 * answers them with a redirect); percent-encoded letters keep their spelling, and match all the same.
 *
 * @returns undefined for what is no path
 */
export function readTarget(url: string): Target | undefined {
  const relative = url.startsWith('/') ? url : withoutOrigin(url);
  if (relative === undefined) return undefined;
  const queryAt = relative.indexOf('?');
  const rawPath = queryAt === -1 ? relative : relative.slice(0, queryAt);
  const path = NEEDS_CLEANING.test(rawPath) ? cleaned(rawPath) : rawPath;
  return { path: queryAt === -1 ? path : path + relative.slice(queryAt), route: decoded(path) };
}

const NEEDS_CLEANING = /\/\/|\/\.\.?(?:\/|$)/;

function withoutOrigin(url: string): string | undefined {
  const match = /^https?:\/\/[^/?#]*(?<rest>[/?].*)?$/i.exec(url);
  if (match === null) return undefined;
  const rest = match.groups?.rest ?? '/';
  return rest.startsWith('/') ? rest : `/${rest}`;
}

function cleaned(path: string): string {
  const kept: string[] = [];
  for (const part of path.split('/')) {
    if (part === '' || part === '.') continue;
    if (part === '..') kept.pop();
    else kept.push(part);
  }
  const isFolder = /\/\.{0,2}$/.test(path) && kept.length > 0;
  return `/${kept.join('/')}${isFolder ? '/' : ''}`;
}

/** `%2F` and `%25` stay: decoded they would be another path. */
function decoded(path: string): string {
  if (!path.includes('%')) return path;
  return path.replaceAll(/%(?!2[fF5])[0-7][0-9A-Fa-f]/g, (code) =>
    String.fromCharCode(Number.parseInt(code.slice(1), 16)),
  );
}

/**
 * The inference API of a request, or undefined for everything that goes straight to the model server.
 *
 * @returns with the target that the legs get: the canonical path for a spelling with a slash at the end (profile B)
 */
export function inferenceApiOf(
  method: string,
  target: Target,
  profile: Profile,
): { readonly api: InferenceApi; readonly path: string } | undefined {
  if (method !== 'POST') return undefined;
  const { route, path } = target;
  const exact = APIS.get(route);
  if (exact !== undefined)
    return exact === 'sglang-generate' && profile === 'A' ? undefined : { api: exact, path };
  if (profile === 'A' || !route.endsWith('/')) return undefined;
  const canonical = route.replace(/\/+$/, '');
  const api = APIS.get(canonical);
  return api === undefined ? undefined : { api, path: canonical + queryOf(path) };
}

function queryOf(path: string): string {
  const at = path.indexOf('?');
  return at === -1 ? '' : path.slice(at);
}
