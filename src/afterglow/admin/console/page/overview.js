// View of all topics in pages; the broker filters and sorts, so that thousands of topics are fast.

import { get } from "./api.js";
import { Chart } from "./chart.js";
import { h, say } from "./dom.js";
import { Figures } from "./figures.js";
import { bytes, bytesPerSecond, count, entries, percent, perSecond, plural, share } from "./format.js";
import { note, remember } from "./history.js";
import { Outages } from "./outages.js";
import { createTopic } from "./topic_actions.js";
import { TopicTable } from "./topic_table.js";

const PAGE = 50;

/** The query; it stays while the user visits a topic. */
const query = { filter: "", sort: "topic", descending: false, offset: 0 };

export class OverviewView {
  static everyMs = 3000;

  constructor(ask, readOnly) {
    this.title = "Topics";
    this.ask = ask;
    this.outages = new Outages();
    this.figures = new Figures("Topics", "Log", "In the tier", "Lag", "In", "Out");
    this.chart = new Chart("Messages per second", perSecond, [["messages_in", "in"], ["messages_out", "out"]]);
    this.table = new TopicTable("Topics", (column) => this.sort(column));
    this.filter = h("input", { type: "search", id: "filter", placeholder: "Filter by name", "aria-label": "Filter topics by name", autocomplete: "off", spellcheck: "false", value: query.filter, oninput: () => this.typed() });
    this.order = h(
      "select",
      { "aria-label": "Sort by", class: "narrow-only", onchange: () => this.sort(this.order.value) },
      [["topic", "By name"], ["lag", "By lag"], ["size", "By size"], ["state", "Failing first"], ["in", "By rate in"], ["backlog", "By backlog"]].map(([value, label]) => h("option", { value, selected: value === query.sort }, label)),
    );
    this.summary = h("p", { class: "hint", role: "status" });
    this.empty = h("p", { class: "empty", hidden: true });
    this.back = h("button", { type: "button", class: "quiet", onclick: () => this.turn(-PAGE) }, "Previous");
    this.forth = h("button", { type: "button", class: "quiet", onclick: () => this.turn(PAGE) }, "Next");
    this.pager = h("nav", { class: "pager", "aria-label": "Pages", hidden: true }, this.back, this.forth);
    this.node = h(
      "div",
      { class: "view" },
      h("h1", { class: "hidden" }, "Topics"),
      this.outages.node,
      h("section", { class: "card summary" }, this.figures.node, this.chart.node),
      h("section", { class: "card" }, h("div", { class: "tools" }, this.filter, this.order, this.summary, this.pager, !readOnly && h("button", { type: "button", onclick: createTopic }, "Create topic…")), this.table.node, this.empty),
    );
    this.table.sortedBy(query.sort, query.descending);
  }

  async refresh() {
    if (!this.begun) remember("", await get("afterglow/history"));
    this.begun = true;
    const { filter, sort, descending, offset } = query;
    const parameters = new URLSearchParams({ filter, sort, descending, offset, limit: PAGE });
    const found = await get(`afterglow/topics?${parameters}`);
    if (offset && offset >= found.matching) {
      query.offset = 0;
      return this.refresh();
    }
    this.show(found, offset);
  }

  show(found, offset) {
    const { totals } = found;
    this.outages.update(found.outages, found.now_ms);
    const ratio = share(totals.offloaded_bytes, totals.size_bytes);
    this.figures.update({
      Topics: [count(found.total), found.failing ? `${count(found.failing)} failing` : "none failing", undefined, found.failing ? "alarm" : ""],
      Log: [bytes(totals.size_bytes), entries(totals.entries)],
      "In the tier": [bytes(totals.offloaded_bytes), percent(ratio), ratio],
      Lag: [bytes(totals.lag_bytes), "not in the tier"],
      In: [perSecond(totals.messages_in_per_second), bytesPerSecond(totals.bytes_in_per_second)],
      Out: [perSecond(totals.messages_out_per_second), bytesPerSecond(totals.bytes_out_per_second)],
    });
    this.chart.update(note("", found.now_ms, {}, { messages_in: totals.messages_in_per_second, messages_out: totals.messages_out_per_second }));
    this.table.update(found.topics);
    this.table.node.hidden = !found.topics.length;
    this.empty.hidden = Boolean(found.topics.length);
    say(this.empty, found.total ? `No topic has “${query.filter}” in its name.` : "There are no topics yet. A Pulsar client that produces to a topic creates it.");
    const last = Math.min(offset + PAGE, found.matching);
    say(this.summary, found.matching > PAGE ? `${count(offset + 1)}–${count(last)} of ${plural(found.matching, "topic")}` : plural(found.matching, "topic"));
    this.pager.hidden = found.matching <= PAGE;
    this.back.disabled = offset === 0;
    this.forth.disabled = last >= found.matching;
  }

  typed() {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => {
      query.filter = this.filter.value.trim();
      query.offset = 0;
      this.ask();
    }, 200);
  }

  sort(column) {
    query.descending = query.sort === column ? !query.descending : column !== "topic";
    query.sort = column;
    query.offset = 0;
    this.table.sortedBy(column, query.descending);
    this.ask();
  }

  turn(by) {
    query.offset = Math.max(query.offset + by, 0);
    this.ask();
  }
}
