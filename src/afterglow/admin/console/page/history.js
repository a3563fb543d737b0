// Samples of the last minutes by topic: those that the server has kept, then those of this page. Counters become rates.

export const KEPT_MS = 15 * 60_000;
const RATE_MS = 10_000; // consumers are served in bursts: a rate over less time jumps between them

const kept = new Map();

/** Begin with the samples of the server, unless the page has its own. */
export function remember(name, samples) {
  if (!kept.has(name)) kept.set(name, { counted: [], samples: samples.map(({ at_ms: atMs, ...sample }) => ({ atMs, ...sample })) });
}

/** Add a sample of a topic's counters and gauges; returns all samples of the last minutes. */
export function note(name, atMs, counters, gauges) {
  const known = kept.get(name) ?? { counted: [], samples: [] };
  if (known.samples.length && atMs <= known.samples.at(-1).atMs) return known.samples; // the same snapshot
  known.counted = [...known.counted.filter((one, at, all) => !all[at + 1] || all[at + 1].atMs > atMs - RATE_MS), { atMs, counters }];
  const [since] = known.counted;
  const seconds = (atMs - since.atMs) / 1000;
  const before = known.samples.at(-1);
  const rates = Object.fromEntries(
    Object.entries(counters).map(([key, value]) => [key, seconds ? Math.max(value - (since.counters[key] ?? value), 0) / seconds : (before?.[key] ?? null)]),
  );
  known.samples = [...known.samples.filter((sample) => sample.atMs > atMs - KEPT_MS), { atMs, ...rates, ...gauges }];
  kept.set(name, known);
  return known.samples;
}
