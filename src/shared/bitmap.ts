// One bit per position of a list, least significant bit first: hits of a lookup, blocks that a fetch wrote.
//
//     position   0               1       2   ...   9
//                byte 0, bit 0   bit 1   bit 2     byte 1, bit 1      (the bits behind the last position are 0)

/** Bytes of the bitmap of `count` positions. */
export function bitmapBytes(count: number): number {
  return (count + 7) >> 3;
}

/** The bitmap of `count` positions in which those are 1 for which `isSet` says so. */
export function packBits(count: number, isSet: (position: number) => boolean): Uint8Array {
  const bitmap = new Uint8Array(bitmapBytes(count));
  for (let i = 0; i < count; i++) if (isSet(i)) bitmap[i >> 3] |= 1 << (i & 7);
  return bitmap;
}

export function hasBit(bitmap: Uint8Array, position: number): boolean {
  return ((bitmap[position >> 3] >> (position & 7)) & 1) === 1;
}

/** How many of `count` positions are 1; undefined when the bytes are no bitmap of exactly so many. */
export function countBits(bitmap: Uint8Array, count: number): number | undefined {
  if (bitmap.length !== bitmapBytes(count)) return undefined;
  const bitsOfLast = count & 7;
  if (bitsOfLast !== 0 && bitmap[bitmap.length - 1] >> bitsOfLast !== 0) return undefined;
  let total = 0;
  for (const byte of bitmap) {
    for (let bits = byte; bits !== 0; bits &= bits - 1) total += 1;
  }
  return total;
}

/** Which of the first `count` positions have this bit, in order. */
export function positionsOf(bitmap: Uint8Array, count: number, isSet: boolean): Int32Array {
  const positions = new Int32Array(count);
  let total = 0;
  for (let i = 0; i < count; i++) if (hasBit(bitmap, i) === isSet) positions[total++] = i;
  return positions.subarray(0, total);
}
