// The bodies of the legs: which parameters each gets, and how the prefill leg is held to one token.

import { randomUUID } from 'node:crypto';
import { buildParams } from '../params/build.js';
import type { PeerAddress } from '../params/types.js';
import type { JsonEdit, JsonEdits } from './json-edit.js';
import type { InferenceApi, Profile } from './routes.js';

export interface LegParams {
  readonly prefill: Record<string, unknown>;
  readonly decode: Record<string, unknown>;
}

/**
 * The params of both legs of a prefill/decode request. The id of a source is a second one: it concerns the consumer only.
 *
 * @param prefiller P2P address of the prefiller @param source P2P address of the KV source, unless it is the prefiller
 */
export function pairParams(prefiller: PeerAddress, source: PeerAddress | undefined): LegParams {
  const kvRequestId = randomUUID();
  return {
    prefill: buildParams({
      remoteDecoder: { kvRequestId },
      remoteKvSource: source === undefined ? undefined : { ...source, kvRequestId: randomUUID() },
    }),
    decode: buildParams({ remotePrefiller: { ...prefiller, kvRequestId } }),
  };
}

export function pullParams(source: PeerAddress): Record<string, unknown> {
  return buildParams({ remoteKvSource: { ...source, kvRequestId: randomUUID() } });
}

/** The P2P port that belongs to a serving port: the base port, and with data parallelism the base port plus the rank. */
export function p2pPortOf(servingPort: number, ranks: PortRanks): number {
  const rank = servingPort - ranks.servingPort;
  return ranks.count > 1 && rank >= 0 && rank < ranks.count ? ranks.p2pPort + rank : ranks.p2pPort;
}

export interface PortRanks {
  /** The sidecar's own base port: all pods are alike. */
  readonly servingPort: number;
  readonly p2pPort: number;
  readonly count: number;
}

/** Edits of a leg that computes the whole answer: the params, and what the API forbids. */
export function decodeEdits(
  api: InferenceApi,
  profile: Profile,
  params: Record<string, unknown> | undefined,
): JsonEdits {
  return new Map([...statelessEdits(api, profile), ...paramsEdits(api, params, [])]);
}

/** Edits of the leg that computes the prompt only: one token, at once, no stream. */
export function prefillEdits(
  api: InferenceApi,
  profile: Profile,
  params: Record<string, unknown>,
): JsonEdits {
  const { top, sampling } = profile === 'A' ? CAPS_A : capsOfB(api);
  return new Map<string, JsonEdit>([
    ...statelessEdits(api, profile),
    ...top,
    ['stream', { kind: 'set', json: 'false' }],
    ['stream_options', { kind: 'remove' }],
    ...paramsEdits(api, params, sampling),
  ]);
}

type Caps = readonly (readonly [string, JsonEdit])[];

const ONE: JsonEdit = { kind: 'set', json: '1' };
const REMOVE: JsonEdit = { kind: 'remove' };
/** Above one they contradict the cap, and vLLM answers 400. */
const NO_MINIMUM: Caps = [
  ['min_tokens', REMOVE],
  ['min_completion_tokens', REMOVE],
];
const CAPS_A: { readonly top: Caps; readonly sampling: Caps } = {
  top: [
    ['max_tokens', ONE],
    ['max_completion_tokens', { kind: 'replace', json: '1' }],
  ],
  sampling: [],
};

function capsOfB(api: InferenceApi): { readonly top: Caps; readonly sampling: Caps } {
  switch (api) {
    case 'chat':
      return { top: [['max_tokens', ONE], ['max_completion_tokens', ONE], ...NO_MINIMUM], sampling: [] };
    case 'completions':
    case 'messages':
      return { top: [['max_tokens', ONE], ...NO_MINIMUM], sampling: [] };
    case 'responses':
      return { top: [['max_output_tokens', ONE], ...NO_MINIMUM], sampling: [] };
    case 'generate':
    case 'sglang-generate':
      return { top: [], sampling: [['max_tokens', ONE], ...NO_MINIMUM] };
  }
}

/** A model server keeps no conversations here; the next request may go to another one. */
export function statelessEdits(api: InferenceApi, profile: Profile): Caps {
  if (api !== 'responses' || profile === 'A') return [];
  return [
    ['previous_response_id', REMOVE],
    ['conversation', REMOVE],
    ['background', REMOVE],
    ['store', { kind: 'set', json: 'false' }],
  ];
}

/** True when even a request without any routing header must be rewritten. */
export function isAlwaysRewritten(api: InferenceApi, profile: Profile): boolean {
  return statelessEdits(api, profile).length > 0;
}

/** Takes params out of every place where an engine would read them. */
export function noParamsEdits(api: InferenceApi): JsonEdits {
  return paramsEdits(api, undefined, []);
}

/**
 * The generate API of vLLM reads the params inside `sampling_params.extra_args`, and at the top only in newer builds:
 * there they stand in both places.
 */
function paramsEdits(
  api: InferenceApi,
  params: Record<string, unknown> | undefined,
  sampling: Caps,
): Map<string, JsonEdit> {
  const edit: JsonEdit = params === undefined ? REMOVE : { kind: 'set', json: JSON.stringify(params) };
  const edits = new Map<string, JsonEdit>([['kv_transfer_params', edit]]);
  if (api === 'generate') {
    const inside: JsonEdit = {
      kind: 'inside',
      edits: new Map([['kv_transfer_params', edit]]),
      isMade: params !== undefined,
    };
    edits.set('sampling_params', {
      kind: 'inside',
      edits: new Map([...sampling, ['extra_args', inside]]),
      // Made for the cap alone: without sampling_params an engine refuses the request anyway.
      isMade: sampling.length > 0,
    });
  } else {
    const noParams: JsonEdits = new Map([['kv_transfer_params', REMOVE]]);
    edits.set('vllm_xargs', { kind: 'inside', edits: noParams, isMade: false });
    if (sampling.length > 0)
      edits.set('sampling_params', { kind: 'inside', edits: new Map(sampling), isMade: true });
  }
  return edits;
}
