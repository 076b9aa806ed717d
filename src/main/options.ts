// Options of a peer (placeholder types until the option table lands).
export type PeerOptions = Readonly<Record<string, unknown>>;
