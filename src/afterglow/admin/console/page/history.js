// Samples of the last minutes by topic, in memory; counters become rates.

export const KEPT_MS = 5 * 60_000;

const kept = new Map();

/** Add a sample of a topic's counters and gauges; returns all samples of the last minutes. */
export function note(name, atMs, counters, gauges) {
  const known = kept.get(name) ?? { last: null, samples: [] };
  const { last } = known;
  if (last && atMs <= last.atMs) return known.samples; // the same snapshot
  const passed = last && (atMs - last.atMs) / 1000;
  const rates = Object.fromEntries(
    Object.entries(counters).map(([key, value]) => [key, passed ? Math.max(value - (last.counters[key] ?? value), 0) / passed : null]),
  );
  known.last = { atMs, counters };
  known.samples = [...known.samples.filter((sample) => sample.atMs > atMs - KEPT_MS), { atMs, ...rates, ...gauges }];
  kept.set(name, known);
  return known.samples;
}
