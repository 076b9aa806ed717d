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
  own: readonly Feature[],
  announcement: KvpeerAnnouncement | undefined,
): ReadonlySet<Feature> {
  return new Set(own.filter((feature) => announcement?.features.includes(feature) === true));
}
