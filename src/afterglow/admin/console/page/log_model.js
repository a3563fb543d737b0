// Model of a topic's log: blocks on two lanes, by entries and by time. Pure functions.

/** Labels of statuses, the most urgent first: a group of blocks has the status of its most urgent one. */
export const STATUSES = {
  Failed: "Failed, will be retried",
  Assigned: "Being offloaded",
  open: "Open, being written",
  closed: "Closed, hot",
  Offloaded: "In the tier",
  gone: "Hot copy deleted",
};

const URGENCY = Object.keys(STATUSES);

/** Merge an answer that starts at ledger `from` into a log. */
export function merged(before, answer, from) {
  if (!before || !from) return answer;
  const first = answer.first_ledger_id;
  const newIds = new Set(answer.objects.map((found) => found.id));
  return {
    ...answer,
    ledgers: [...before.ledgers.filter((row) => row.ledger_id >= first && row.ledger_id < from), ...answer.ledgers],
    objects: [
      ...before.objects.filter((found) => found.end && found.end.ledger_id >= first && found.end.ledger_id < from && !newIds.has(found.id)),
      ...answer.objects,
    ],
  };
}

/** The first ledger that may still change; earlier ones are fetched less often. */
export function firstChanging(log) {
  const changing = log.ledgers.find((row) => row.status === "open" || !["offloaded", "freed", "waiting-for-lag"].includes(row.state));
  return changing?.ledger_id ?? log.ledgers.at(-1)?.ledger_id ?? 0;
}

/** Blocks of both lanes and cursors; each has a range of entries `x0…x1` and of time `t0…t1`. */
export function modelOf(log) {
  const starts = new Map(log.ledgers.map((row) => [row.ledger_id, row]));
  const rank = (at) => {
    const row = starts.get(at.ledger_id);
    return row ? row.first_index + Math.min(at.entry_id, row.entries) : 0;
  };
  const begins = new Map(
    log.objects.filter((found) => found.first_ms && found.begin.entry_id === 0).map((found) => [found.begin.ledger_id, found.first_ms]),
  );
  let end = log.first_ms;
  const hot = log.ledgers
    .filter((row) => row.entries || row.status === "open")
    .map((row) => {
      const t1 = row.last_ms ?? end ?? log.now_ms;
      const t0 = Math.min(Math.max(begins.get(row.ledger_id) ?? end ?? t1, end ?? 0), t1);
      end = t1;
      return {
        key: `ledger:${row.ledger_id}`,
        lane: "hot",
        status: row.status,
        label: String(row.ledger_id),
        x0: row.first_index,
        x1: row.first_index + row.entries,
        t0,
        t1,
        row,
      };
    });
  const timeAt = interpolation(hot, log.now_ms);
  const tier = log.objects
    .map((found) => {
      const x0 = rank(found.begin);
      const x1 = found.end ? rank(found.end) + 1 : log.entries;
      return {
        key: `${found.kind}:${found.id}`,
        lane: "tier",
        status: found.status,
        label: found.kind === "segment" ? found.id.slice(0, 8) : `ledger ${found.begin.ledger_id}`,
        x0,
        x1: Math.max(x1, x0),
        t0: found.first_ms ?? timeAt(x0),
        t1: found.last_ms ?? timeAt(Math.max(x1, x0)),
        // the uploaded share
        filled: found.status === "Offloaded" ? 1 : x1 > x0 ? Math.min(found.entries / (x1 - x0), 1) : 0,
        row: found,
      };
    })
    .sort((one, other) => one.x0 - other.x0);
  const cursors = log.cursors.map((cursor) => ({
    key: `cursor:${cursor.name}`,
    lane: "cursor",
    label: cursor.name,
    x0: cursor.index,
    t0: timeAt(cursor.index),
    row: cursor,
  }));
  return {
    hot,
    tier,
    cursors,
    entries: { low: 0, high: Math.max(log.entries, 1) },
    time: { low: log.first_ms ?? log.now_ms - 1000, high: Math.max(log.now_ms, (log.first_ms ?? 0) + 1000) },
  };
}

/** Time of the entry at an index, interpolated between the ends of ledgers. */
function interpolation(blocks, nowMs) {
  const written = blocks.filter((block) => block.x1 > block.x0);
  return (index) => {
    let low = 0;
    let high = written.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (written[middle].x1 < index) low = middle + 1;
      else high = middle;
    }
    const block = written[low];
    if (!block) return nowMs;
    const part = Math.min(Math.max((index - block.x0) / (block.x1 - block.x0), 0), 1);
    return block.t0 + part * (block.t1 - block.t0);
  };
}

/**
 * Groups of blocks for drawing: neighbours that are narrower than `least` become one group, up to `most` wide.
 * @param scale From a block to its two ends in pixels.
 */
export function fitted(blocks, scale, least = 4, most = 12) {
  const found = [];
  for (const block of blocks) {
    const [left, right] = scale(block);
    const last = found.at(-1);
    const narrow = right - left < least;
    if (last && narrow && last.narrow && left - last.right < least && right - last.left <= most) {
      last.blocks.push(block);
      last.right = Math.max(last.right, right);
    } else {
      found.push({ key: block.key, lane: block.lane, left, right, narrow, blocks: [block] });
    }
  }
  for (const group of found) group.status = mostUrgent(group.blocks);
  return found;
}

function mostUrgent(blocks) {
  return URGENCY[Math.min(...blocks.map((block) => URGENCY.indexOf(block.status)))];
}

/** The first ledger that is not offloaded if the newest `keep` bytes are kept; null if nothing is offloaded. */
export function firstKept(ledgers, keep) {
  const newest = ledgers.at(-1);
  if (!newest) return null;
  let kept = newest.status === "open" ? newest.ledger_id : newest.ledger_id + 1;
  if (keep === 0) return ledgers.some((row) => row.ledger_id < kept && row.entries) ? kept : null;
  kept = newest.ledger_id;
  let total = 0;
  for (const row of ledgers.toReversed()) {
    total += row.bytes;
    if (total > keep) return ledgers.some((other) => other.ledger_id < kept && other.entries) ? kept : null;
    kept = row.ledger_id;
  }
  return null;
}
