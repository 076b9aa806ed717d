// The error table: every error a user of kvpeer can meet, by a stable code.

/** What each code means, in one sentence. A message built from it names the thing, the reason and the remedy. */
export const ERROR_CODES = {
  KVPEER_BUSY: 'the node has no room for the operation right now; try again later or raise its limits',
  KVPEER_BIND: 'an address cannot be bound; choose another one or free it',
  KVPEER_CLOSED: 'the peer was closed; start a new one',
  KVPEER_DEADLINE: 'an operation did not end within its time; the request goes on without it',
  KVPEER_INVALID_OPTION: 'an option has a value that cannot work; correct it',
  KVPEER_INVALID_ARGUMENT: 'a call was made with an argument that cannot work; correct the call',
  KVPEER_INVALID_PARAMS: 'kv_transfer_params are not legal; correct the request',
  KVPEER_KUBERNETES: 'the Kubernetes API cannot be used; correct its configuration or the rights of this pod',
  KVPEER_MEMORY: 'the memory for the node cannot be had; lower --pool-bytes or make room',
  KVPEER_NIXL_UNAVAILABLE: 'the NIXL library cannot be used; run the set-up or start with --data-plane none',
  KVPEER_NATIVE_UNAVAILABLE: 'the native addon cannot be loaded; run npm run build',
  KVPEER_OPERATION: 'an operation on the pool ended with an unexpected outcome; the log has the reason',
  KVPEER_PEER_REJECTED: 'the remote peer cannot be used by this node',
  KVPEER_POOL_FULL: 'no slot could be freed: every block is pinned, being written or quarantined',
  KVPEER_PROTOCOL: 'the remote peer broke the protocol',
  KVPEER_PEER_LOST: 'a peer process of the replay ended before the replay did; see its output',
  KVPEER_REPORT: 'a report of the replay could not be written; make room or name another place',
  KVPEER_TRACE: 'a trace cannot be used; correct it or name another one',
  KVPEER_WORKER_LOST: 'the worker that ran the operation died; the operation was not completed',
} as const;

export type ErrorCode = keyof typeof ERROR_CODES;

/** An error with a stable `code`. `message` names the thing, the reason and the remedy. */
export class KvpeerError extends Error {
  override readonly name = 'KvpeerError';
  readonly code: ErrorCode;

  constructor(code: ErrorCode, message: string, options?: { cause?: unknown }) {
    super(message, options);
    this.code = code;
  }
}
