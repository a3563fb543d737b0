// Table of topics with their statistics; on a narrow screen, cards.

import { fillMeter } from "./figures.js";
import { h, keyed, say, set } from "./dom.js";
import { bytes, bytesPerSecond, compact, entries, parseTopic, perSecond, plural, share, span } from "./format.js";
import { topicAddress } from "./routes.js";

export const MODES = {
  streaming: ["Streaming", "Offloaded in segments while it is written."],
  ledgers: ["Ledgers", "Closed ledgers are offloaded by a threshold."],
  manual: ["Manual", "Offloaded on request only."],
  none: ["None", "Not offloaded."],
};

const COLUMNS = [
  ["topic", "Topic", false],
  ["state", "Offload", false],
  ["size", "Size", true],
  ["tier", "In the tier", true],
  ["lag", "Lag", true],
  ["in", "In", true],
  ["out", "Out", true],
  ["backlog", "Backlog", true],
];

/** A badge with the offload mode of a topic, and whether offload fails. */
export function stateBadge() {
  return h("span", { class: "badge" });
}

export function fillBadge(badge, row) {
  const [label, meaning] = MODES[row.offload];
  set(badge, { "data-mode": row.failing ? "failing" : row.offload, title: row.failing ? `The last attempt failed. ${meaning}` : meaning });
  say(badge, row.failing ? "Failing" : label);
}

export class TopicTable {
  /** @param sorted Called with the column to sort by; null: the table cannot be sorted. */
  constructor(caption, sorted) {
    this.known = new Map();
    this.heads = COLUMNS.map(([key, label, number]) =>
      h("th", { scope: "col", class: number ? "number" : null, "data-column": key }, sorted ? h("button", { type: "button", onclick: () => sorted(key) }, label) : label),
    );
    this.body = h("tbody", {});
    this.node = h("table", { class: "topics" }, h("caption", { class: "hidden" }, caption), h("thead", {}, h("tr", {}, this.heads)), this.body);
  }

  sortedBy(column, descending) {
    for (const head of this.heads) {
      head.ariaSort = head.dataset.column === column ? (descending ? "descending" : "ascending") : null;
    }
  }

  update(rows) {
    keyed(this.body, this.known, rows.map((row) => [row.topic, row]), makeRow, updateRow);
  }
}

function makeRow(row) {
  const { namespace, local, reachable } = parseTopic(row.topic);
  const name = h(reachable ? "a" : "span", { class: "topic-name", href: reachable ? topicAddress(row.topic) : null }, local);
  const cell = (label, ...children) => h("td", { class: "number", "data-label": label }, ...children);
  const two = () => [h("span", { class: "main" }), h("span", { class: "below" })];
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, name, h("span", { class: "below" }, namespace)),
    h("td", { class: "state" }, stateBadge(), h("span", { class: "below" })),
    cell("Size", two()),
    cell("In the tier", two(), h("div", { class: "meter" }, h("span", {}))),
    cell("Lag", two()),
    cell("In", two()),
    cell("Out", two()),
    cell("Backlog", two()),
  );
}

function updateRow(node, row) {
  const [name, state, ...cells] = node.children;
  const { namespace } = parseTopic(row.topic);
  node.dataset.failing = row.failing;
  say(name.lastElementChild, row.partitions ? `${namespace} · ${plural(row.partitions, "partition")}` : namespace);
  fillBadge(state.firstElementChild, row);
  say(state.lastElementChild, row.failing ? MODES[row.offload][0] : "");
  const ratio = share(row.offloaded_bytes, row.size_bytes);
  const values = [
    [bytes(row.size_bytes), entries(row.entries)],
    [bytes(row.offloaded_bytes), ""],
    [bytes(row.lag_bytes), row.lag_bytes ? span(row.lag_seconds) : "none"],
    [perSecond(row.messages_in_per_second), bytesPerSecond(row.bytes_in_per_second)],
    [perSecond(row.messages_out_per_second), bytesPerSecond(row.bytes_out_per_second)],
    row.open ? [compact(row.backlog), plural(row.subscriptions, "subscription")] : ["–", "not open"],
  ];
  values.forEach(([main, below], index) => {
    say(cells[index].children[0], main);
    say(cells[index].children[1], below);
  });
  fillMeter(cells[1].lastElementChild, ratio);
}
