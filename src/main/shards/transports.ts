// Which transports an agent offers, as its metadata tells: the C API has no call for it.

/** Of those that the wheel's UCX has, the ones that can carry a write. */
const NETWORK = ['tcp', 'cma', 'sysv', 'posix', 'self'] as const;
const RDMA = ['rc_mlx5', 'rc_verbs', 'dc_mlx5', 'ud_mlx5', 'ud_verbs', 'srd'] as const;

/** The connection record of the metadata: tag, 8-byte length, data. */
const CONNECTION_TAG = Buffer.from('|c');

/**
 * Names of the transports in an agent's metadata. UCX packs each as the CRC-16 of its name, so a name is found wrongly
 * once in a few thousand blobs. What two agents use is what both offer and can reach each other by.
 *
 * @param hasRdma whether the host has RDMA devices at all; their names are not looked for otherwise
 */
export function transportsIn(metadata: Uint8Array, hasRdma: boolean): string[] {
  const blob = Buffer.from(metadata.buffer, metadata.byteOffset, metadata.byteLength);
  const start = blob.indexOf(CONNECTION_TAG);
  const dataStart = start + CONNECTION_TAG.length + 8;
  if (start < 0 || dataStart > blob.length) return [];
  const length = Number(blob.readBigUInt64LE(start + CONNECTION_TAG.length));
  const addresses = blob.subarray(dataStart, dataStart + length);
  return [...NETWORK, ...(hasRdma ? RDMA : [])].filter((name) => addresses.includes(checksumOf(name)));
}

/** CRC-16/X-25 of the name, little-endian. */
function checksumOf(name: string): Buffer {
  let crc = 0xffff;
  for (const byte of Buffer.from(name)) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = (crc & 1) === 1 ? (crc >> 1) ^ 0x8408 : crc >> 1;
  }
  const bytes = Buffer.alloc(2);
  bytes.writeUInt16LE(crc ^ 0xffff);
  return bytes;
}
