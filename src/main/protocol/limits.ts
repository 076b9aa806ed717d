// What a message may contain before it is believed: one typed record, every figure overridable.

/** Bounds that the scanner applies to a message from outside. Source of the defaults: ARCHITECTURE.md, "Limits". */
export interface ProtocolLimits {
  /** Length of the keys of this node, in bytes. A key of another length is legal on the wire and always a miss. */
  readonly keyBytes: number;
  /** Longest message, in bytes. The ROUTER refuses longer ones too, this is the second look. */
  readonly messageBytes: number;
  /** Most entries of `keys`, `hits` or `block_indexes` in one message. */
  readonly keyCount: number;
  /** Longest string of a known field, in bytes of UTF-8. The shortest is 1, save for `config_fingerprint`. */
  readonly stringBytes: number;
  /** Longest `agent_metadata`, in bytes. */
  readonly metadataBytes: number;
  /** Most levels of nesting, unknown fields included. The messages themselves need 3. */
  readonly depth: number;
  /** Most values that are stepped over one by one (unknown fields, lists of mixed keys): bounds the time of a scan. */
  readonly skippedValues: number;
}

export const DEFAULT_LIMITS: ProtocolLimits = {
  keyBytes: 36,
  messageBytes: 8 * 1024 * 1024,
  keyCount: 65_536,
  stringBytes: 512,
  metadataBytes: 64 * 1024,
  depth: 32,
  skippedValues: 262_144,
};

/** Highest legal `num_blocks`: slot numbers are int32 and 2^31 - 1 is kept free as "none". */
export const MAX_NUM_BLOCKS = 2 ** 31 - 1;

/** Highest legal slot number on the wire. */
export const MAX_BLOCK_INDEX = MAX_NUM_BLOCKS - 1;
