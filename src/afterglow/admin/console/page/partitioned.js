// View of a partitioned topic: its partitions, and actions on all of them.

import { get, topicPath } from "./api.js";
import { h } from "./dom.js";
import { Figures } from "./figures.js";
import { bytes, bytesPerSecond, count, entries, parseTopic, percent, perSecond, share } from "./format.js";
import { offloadPartitions } from "./offload.js";
import { Outages } from "./outages.js";
import { PolicyCard } from "./policy.js";
import { seek } from "./seek.js";
import { skip } from "./skip.js";
import { Subscriptions } from "./subscriptions.js";
import { topicHead } from "./topic_head.js";
import { TopicTable } from "./topic_table.js";

const MAX_PARTITIONS = 1000;

export class PartitionedView {
  static everyMs = 3000;

  constructor(topic, ask, partitions, readOnly) {
    this.topic = topic;
    const { local } = parseTopic(topic);
    this.title = local;
    this.outages = new Outages();
    this.figures = new Figures("Partitions", "Log", "In the tier", "Lag", "In", "Out");
    this.table = new TopicTable(`Partitions of ${local}`, null);
    this.subscriptions = new Subscriptions(readOnly ? {} : { seek: (cursor) => seek(topic, cursor, null, ask), skip: (cursor) => skip(topic, cursor, partitions, ask) });
    this.policy = new PolicyCard(topic, () => this.policy.refresh(null).then(ask));
    this.node = h(
      "div",
      { class: "view" },
      topicHead(topic, "log", [h("button", { type: "button", class: "primary", onclick: () => offloadPartitions(topic, this.rows, ask) }, "Offload…")], { partitions, readOnly }),
      this.outages.node,
      h("section", { class: "card" }, this.figures.node),
      h("section", { class: "card" }, h("h2", {}, "Partitions"), this.table.node),
      h("div", { class: "columns" }, this.subscriptions.node, this.policy.node),
    );
  }

  async refresh() {
    const found = await get(`afterglow/topics?${new URLSearchParams({ partitionsOf: `persistent://${this.topic}`, limit: MAX_PARTITIONS })}`);
    const names = await get(topicPath(this.topic, "subscriptions"));
    if (!this.policy.rows) await this.policy.refresh(null);
    this.rows = found.topics;
    const { totals } = found;
    this.outages.update(found.outages, found.now_ms);
    const ratio = share(totals.offloaded_bytes, totals.size_bytes);
    this.figures.update({
      Partitions: [count(found.total), found.failing ? `${count(found.failing)} failing` : "none failing", undefined, found.failing ? "alarm" : ""],
      Log: [bytes(totals.size_bytes), entries(totals.entries)],
      "In the tier": [bytes(totals.offloaded_bytes), percent(ratio), ratio],
      Lag: [bytes(totals.lag_bytes), "not in the tier"],
      In: [perSecond(totals.messages_in_per_second), bytesPerSecond(totals.bytes_in_per_second)],
      Out: [perSecond(totals.messages_out_per_second), bytesPerSecond(totals.bytes_out_per_second)],
    });
    this.table.update(found.topics);
    this.subscriptions.update(names.map((name) => ({ name })));
  }
}
