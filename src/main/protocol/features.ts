// Which extensions two kvpeers use with each other: those that both have announced.

import { FEATURES, type Feature, type KvpeerAnnouncement } from './messages.js';

/** What decides which extensions a node can offer. */
export interface FeatureSources {
  /** Blocks can be written here: there is a data plane. */
  readonly hasDataPlane: boolean;
  readonly keepsChecksums: boolean;
  /** Those that may be used; default all. */
  readonly allowed?: readonly Feature[] | undefined;
}

/** What a node announces, in the order of {@link FEATURES}. */
export function announcedFeatures({
  hasDataPlane,
  keepsChecksums,
  allowed = FEATURES,
}: FeatureSources): readonly Feature[] {
  return FEATURES.filter((feature) => {
    if (feature === 'scratch_page' && !hasDataPlane) return false;
    if (feature === 'checksums' && !keepsChecksums) return false;
    return allowed.includes(feature);
  });
}

/** What a node that announces `own` uses with a peer; nothing with a plain one. */
export function commonFeatures(
  own: Pick<KvpeerAnnouncement, 'features' | 'keyBytes'>,
  theirs: KvpeerAnnouncement | undefined,
): ReadonlySet<Feature> {
  return new Set(
    own.features.filter((feature) => {
      // One bin does not say where a key ends.
      if (feature === 'packed_keys' && (own.keyBytes === undefined || theirs?.keyBytes !== own.keyBytes))
        return false;
      return theirs?.features.includes(feature) === true;
    }),
  );
}
