// View of one topic: log, charts, subscriptions, policy.

import { get, topicPath } from "./api.js";
import { Chart, inBytes } from "./chart.js";
import { h } from "./dom.js";
import { Figures } from "./figures.js";
import { bytes, bytesPerSecond, compact, entries, parseTopic, percent, perSecond, plural, share, span } from "./format.js";
import { note, remember } from "./history.js";
import { details } from "./inspector.js";
import { Lanes } from "./lanes.js";
import { firstChanging, merged, modelOf, STATUSES } from "./log_model.js";
import { offload } from "./offload.js";
import { Outages } from "./outages.js";
import { PolicyCard } from "./policy.js";
import { seek } from "./seek.js";
import { skip } from "./skip.js";
import { Subscriptions } from "./subscriptions.js";
import { topicHead } from "./topic_head.js";
import { fillBadge, stateBadge } from "./topic_table.js";

const FULL_EVERY = 12; // polls; the older part of the log changes rarely

export class TopicView {
  static everyMs = 2000;

  constructor(topic, ask, readOnly) {
    this.topic = topic;
    this.ask = ask;
    this.title = parseTopic(topic).local;
    this.log = null;
    this.pinned = null;
    this.hovered = null;
    this.answers = 0;
    this.badge = stateBadge();
    this.outages = new Outages();
    this.figures = new Figures("Log", "In the tier", "Lag", "In", "Out", "Backlog");
    this.lanes = new Lanes((shown, stay) => this.onSelect(shown, stay));
    this.inspector = h("div", { class: "inspector", role: "region", "aria-label": "Details" });
    this.charts = {
      messages: new Chart("Messages", perSecond, [["messages_in", "in"], ["messages_out", "out"]]),
      bytes: new Chart("Throughput", inBytes(bytesPerSecond), [["bytes_in", "in"], ["bytes_out", "out"]], 1024),
      lagBytes: new Chart("Lag", inBytes(bytes), [["lag_bytes", ""]], 1024),
      lagSeconds: new Chart("Age of the oldest entry outside the tier", span, [["lag_seconds", ""]], 10),
    };
    this.subscriptions = new Subscriptions(readOnly ? {} : { seek: (cursor) => this.seek(cursor), skip: (cursor) => skip(topic, cursor, 0, ask) });
    this.policy = new PolicyCard(topic, () => this.policyChanged());
    this.offloadButton = h("button", { type: "button", class: "primary", disabled: true, onclick: () => (this.offloading = offload(this.topic, () => this.log, this.streaming, this.ask)) }, "Offload…");
    this.node = h(
      "div",
      { class: "view" },
      topicHead(topic, "log", [this.badge, this.offloadButton], { readOnly }),
      this.outages.node,
      h("section", { class: "card" }, this.figures.node),
      h("section", { class: "card log" }, h("div", { class: "card-head" }, h("h2", {}, "Log"), this.axisSwitch(), this.zoom()), this.lanes.node, legend(), this.inspector),
      h("section", { class: "card charts" }, Object.values(this.charts).map((chart) => chart.node)),
      h("div", { class: "columns" }, this.subscriptions.node, this.policy.node),
    );
  }

  get streaming() {
    return this.policy.rows?.get("streamingOffloadEnabled").value === true;
  }

  axisSwitch() {
    const button = (axis, label) =>
      h("button", { type: "button", "aria-pressed": String(axis === this.lanes.axis), onclick: (event) => {
        this.lanes.axis = axis;
        for (const other of event.currentTarget.parentElement.children) other.ariaPressed = String(other === event.currentTarget);
        this.draw();
      } }, label);
    return h("div", { class: "switch", role: "group", "aria-label": "Axis" }, button("entries", "Positions"), button("time", "Time"));
  }

  zoom() {
    const choice = h(
      "select",
      { "aria-label": "Part of the log that is shown", onchange: () => {
        this.lanes.part = Number(choice.value);
        this.draw();
      } },
      [["1", "Whole log"], ["0.25", "Newest quarter"], ["0.05", "Newest twentieth"], ["0.01", "Newest hundredth"]].map(([value, label]) => h("option", { value }, label)),
    );
    return choice;
  }

  async refresh() {
    const from = this.log && this.answers % FULL_EVERY ? firstChanging(this.log) : 0;
    if (!this.log) remember(this.topic, await get(topicPath(this.topic, "history")));
    const answer = await get(`${topicPath(this.topic, "log")}${from ? `?from=${from}` : ""}`);
    if (!this.policy.rows || this.answers % FULL_EVERY === 0) await this.loadPolicy();
    this.answers += 1;
    this.log = merged(this.log, answer, from);
    this.offloadButton.disabled = false;
    this.show();
  }

  async loadPolicy() {
    const base = /^(.*)-partition-\d+$/.exec(this.topic)?.[1];
    const whole = base ? await get(topicPath(base, "partitions")).catch(() => null) : null;
    await this.policy.refresh(whole?.partitions ? base : null);
  }

  async policyChanged() {
    await this.loadPolicy();
    this.ask();
  }

  show() {
    const { log } = this;
    const counters = { messages_in: log.messages_in, bytes_in: log.bytes_in, messages_out: log.messages_out, bytes_out: log.bytes_out };
    const samples = note(this.topic, log.now_ms, counters, { lag_bytes: log.lag_bytes, lag_seconds: log.lag_seconds });
    for (const chart of Object.values(this.charts)) chart.update(samples);
    this.outages.update(log.outages, log.now_ms);
    const latest = samples.at(-1);
    const ratio = share(log.offloaded_bytes, log.size_bytes);
    const backlog = log.cursors.reduce((sum, cursor) => sum + cursor.backlog, 0);
    this.figures.update({
      Log: [bytes(log.size_bytes), `${entries(log.entries)}, ${plural(log.ledgers.length, "ledger")}`],
      "In the tier": [bytes(log.offloaded_bytes), `${percent(ratio)}, ${plural(log.objects.filter((found) => found.status === "Offloaded").length, "object")}`, ratio],
      Lag: [bytes(log.lag_bytes), log.lag_bytes ? `oldest ${span(log.lag_seconds)}` : "none"],
      In: rate(latest.messages_in, latest.bytes_in),
      Out: rate(latest.messages_out, latest.bytes_out),
      Backlog: [compact(backlog), plural(log.cursors.length, "subscription")],
    });
    fillBadge(this.badge, { offload: this.mode(), failing: log.objects.some((found) => found.status === "Failed") || log.ledgers.some((row) => row.state === "failed") });
    this.subscriptions.update(log.cursors);
    this.offloading?.();
    this.draw();
  }

  mode() {
    if (this.streaming) return "streaming";
    const value = (name) => this.policy.rows?.get(name).value ?? -1;
    if (this.log.ledgers.every((row) => row.state === null)) return "none";
    return Math.max(value("managedLedgerOffloadThresholdInBytes"), value("managedLedgerOffloadThresholdInSeconds")) >= 0 ? "ledgers" : "manual";
  }

  draw() {
    if (!this.log) return;
    this.lanes.draw(modelOf(this.log));
    this.inspect();
  }

  /** Show the details of blocks: while the pointer is over them, or until others are selected. */
  onSelect(shown, stay) {
    this.hovered = stay ? null : (shown?.key ?? null);
    if (stay) this.pinned = shown.key;
    this.inspect();
  }

  inspect() {
    const newest = this.lanes.groups.hot.at(-1) ?? null;
    const shown = (this.hovered && this.lanes.find(this.hovered)) || (this.pinned && this.lanes.find(this.pinned)) || newest;
    this.lanes.select(shown);
    const found = details(shown, this.log, (cursor) => this.seek(cursor)).filter(Boolean);
    const text = found.map((node) => node.textContent).join("");
    if (this.inspector.textContent === text) return;
    this.inspector.replaceChildren(...found);
  }

  seek(cursor) {
    seek(this.topic, cursor, this.log, this.ask);
  }
}

/** Counters have no rate before the second sample. */
const rate = (messages, size) => (messages === null ? ["–", ""] : [perSecond(messages), bytesPerSecond(size)]);

function legend() {
  return h("ul", { class: "legend" }, ["open", "closed", "gone", "Assigned", "Failed", "Offloaded"].map((status) => h("li", {}, h("span", { class: `swatch s-${status}` }), STATUSES[status])));
}
