// Finds the known name that a mistyped one most likely meant.

/**
 * The known name nearest to `name` by edit distance (case, `-` and `_` do not count), for "did you mean" messages.
 *
 * @returns undefined when nothing is near: more than a third of the name would have to change
 */
export function nearestName(name: string, known: Iterable<string>): string | undefined {
  const wanted = fold(name).slice(0, MAX_COMPARED);
  let best: string | undefined;
  let bestDistance = Math.max(1, Math.floor(wanted.length / 3)) + 1;
  for (const candidate of known) {
    const distance = editDistance(wanted, fold(candidate));
    if (distance < bestDistance) {
      best = candidate;
      bestDistance = distance;
    }
  }
  return best;
}

/** Names come from outside: a long one is cut before the quadratic comparison. */
const MAX_COMPARED = 64;

function fold(name: string): string {
  return name.toLowerCase().replaceAll(/[-_]/g, '');
}

function editDistance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, column) => column);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) {
      const substituted = row[j - 1] + (a[i - 1] === b[j - 1] ? 0 : 1);
      next.push(Math.min(substituted, row[j] + 1, next[j - 1] + 1));
    }
    row = next;
  }
  return row[b.length];
}
