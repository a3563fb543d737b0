// Details of blocks.

import { h } from "./dom.js";
import { acknowledged, bytes, compact, count, plural, position, span, time } from "./format.js";
import { STATUSES } from "./log_model.js";

/**
 * The details of a group of blocks.
 * @param shown The group.
 * @param log The whole log.
 * @param seek Resets a subscription.
 */
export function details(shown, log, seek) {
  if (!shown) return [h("p", { class: "hint" }, "The topic is empty.")];
  if (shown.lane === "cursor") return shown.blocks.map((cursor) => ofCursor(cursor.row, seek));
  if (shown.blocks.length > 1) return ofMany(shown);
  const [block] = shown.blocks;
  return block.lane === "hot" ? ofLedger(block) : ofObject(block, log);
}

function head(title, status) {
  return h("div", { class: "inspector-head" }, h("h3", {}, title), h("span", { class: `badge s-${status}` }, STATUSES[status]));
}

function pairs(...rows) {
  return h("dl", { class: "pairs" }, rows.filter(Boolean).map(([name, value, kind]) => h("div", { class: kind }, h("dt", {}, name), h("dd", {}, value))));
}

function ofLedger({ row, t0, t1, status }) {
  return [
    head(`Ledger ${row.ledger_id}`, status),
    ...reason(row.sentence, row.error),
    pairs(
      ["Range", row.entries ? `${row.ledger_id}:0 – ${row.ledger_id}:${row.entries - 1}` : "no entries yet"],
      ["Entries", count(row.entries)],
      ["Size", bytes(row.bytes)],
      ["Written", `${time(t0)} – ${status === "open" ? "now" : time(t1)}`],
      ["Closed", row.closed_ms ? time(row.closed_ms) : "not yet"],
      row.next_ms && ["Next step", time(row.next_ms)],
    ),
  ];
}

function ofObject({ row, t0, t1, x0, x1, status }, log) {
  const done = status === "Offloaded";
  const last = row.end?.ledger_id ?? log.ledgers.at(-1)?.ledger_id;
  const why = log.ledgers.find((found) => found.ledger_id === last)?.sentence;
  return [
    head(row.kind === "segment" ? `Segment ${row.id.slice(0, 8)}` : `Object of ledger ${row.begin.ledger_id}`, status),
    ...reason(done || !why ? null : `Ledger ${last}: ${why}`, row.error),
    pairs(
      ["Range", `${position(row.begin)} – ${position(row.end)}`],
      ["Entries", done ? count(row.entries) : `${count(row.entries)} of ${count(x1 - x0)} uploaded`],
      ["Size", bytes(row.bytes)],
      ["Written", `${time(t0)} – ${row.end ? time(t1) : "now"}`],
      row.assigned_ms && ["Assigned", time(row.assigned_ms)],
      ["Offloaded", row.offloaded_ms ? `${time(row.offloaded_ms)}${took(row)}` : "not yet"],
      ["Tier location", [row.driver, row.bucket].filter(Boolean).join(" · ") || "unknown", "wide"],
      ["Object", row.key ?? "not known yet", "wide code"],
      !row.key?.includes(row.id) && ["Id", row.id, "wide code"],
    ),
  ];
}

const took = (row) => (row.assigned_ms ? `, ${span((row.offloaded_ms - row.assigned_ms) / 1000)} after` : "");

function ofMany(shown) {
  const { blocks, status } = shown;
  const what = shown.lane === "hot" ? "ledger" : "object";
  const sum = (name) => blocks.reduce((total, block) => total + block.row[name], 0);
  const counted = Object.entries(Object.groupBy(blocks, (block) => block.status)).map(([name, found]) => `${count(found.length)} ${STATUSES[name].toLowerCase()}`);
  const ends = [blocks[0], blocks.at(-1)].map((block) => (shown.lane === "hot" ? block.row.ledger_id : position(block.row.begin)));
  return [
    head(plural(blocks.length, what), status),
    h("p", { class: "why" }, `Too narrow to be drawn separately: ${counted.join(", ")}. Show a newer part of the log, or use the other axis.`),
    pairs(["From", ends[0]], ["To", ends[1]], ["Entries", count(sum("entries"))], ["Size", bytes(sum("bytes"))], ["Written", `${time(blocks[0].t0)} – ${time(blocks.at(-1).t1)}`]),
  ];
}

function ofCursor(row, seek) {
  return h(
    "div",
    { class: "cursor-details" },
    h("div", { class: "inspector-head" }, h("h3", {}, row.name), h("span", { class: "badge" }, row.durable ? "Subscription" : "Reader"), row.durable && h("button", { type: "button", class: "quiet", onclick: () => seek(row) }, "Seek…")),
    pairs(["Acknowledged up to", acknowledged(row.mark_delete)], ["Backlog", `${compact(row.backlog)} entries`], ["Consumers", count(row.consumers)], ["Not acknowledged", plural(row.unacknowledged, "message")]),
  );
}

/** The explanation of a block and its error, unless the explanation contains it. */
function reason(sentence, error) {
  if (!error) return [sentence && h("p", { class: "why" }, sentence)];
  if (sentence?.includes(error)) return [h("p", { class: "problem" }, sentence)];
  return [sentence && h("p", { class: "why" }, sentence), h("p", { class: "problem" }, error)];
}
