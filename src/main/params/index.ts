// kv_transfer_params as a library: parse, validate, build (the llm-d contract, section 3).

export { formatHostPort, isSameAddress, parseHost, parseHostPort, parsePeerUrl } from './address.js';
export {
  allocateIds,
  buildParams,
  canonicalParams,
  KvpeerParamsError,
  parseParamsOrThrow,
  type CanonicalOptions,
  type IdentifiedKvSource,
  type IdentifiedParams,
  type ParamsParts,
} from './build.js';
export {
  IGNORED_HINTS,
  parseHintsJson,
  readHints,
  withHints,
  type FetchHint,
  type HintRules,
  type IgnoredHint,
} from './hints.js';
export { idFault, parseParams } from './parse.js';
export {
  formatIssue,
  MAX_ID_BYTES,
  MAX_SOURCES,
  PARAMS_ISSUES,
  type KvTransferParams,
  type ParamsCombination,
  type ParamsIssue,
  type ParamsIssueCode,
  type ParamsResult,
  type ParseParamsOptions,
  type PeerAddress,
  type RemoteDecoder,
  type RemoteKvSource,
  type RemotePrefiller,
} from './types.js';
export { UsedIds, validateLegs } from './validate.js';
