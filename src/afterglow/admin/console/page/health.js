// View of the health of the broker and its tiers.

import { get } from "./api.js";
import { h, keyed, say, set } from "./dom.js";
import { Figures } from "./figures.js";
import { bytes, count, span, time } from "./format.js";
import { topicAddress } from "./routes.js";

export class HealthView {
  static everyMs = 3000;

  constructor() {
    this.title = "Health";
    this.figures = new Figures("State", "Running for", "Connections", "Topics open", "Cache", "Offload buffer");
    this.tiers = h("tbody", {});
    this.tierTable = h("table", { class: "cards", hidden: true }, h("caption", { class: "hidden" }, "Tiers"), h("thead", {}, h("tr", {}, ["Tier", "State", "Since", "Reason"].map((name) => h("th", { scope: "col" }, name)))), this.tiers);
    this.knownTiers = new Map();
    this.noTiers = h("p", { class: "empty", hidden: true }, "No tier is used yet.");
    this.failing = h("ul", { class: "failing" });
    this.knownFailing = new Map();
    this.noFailing = h("p", { class: "empty", hidden: true }, "The last offload of every topic has succeeded.");
    this.about = h("p", { class: "hint" });
    this.node = h(
      "div",
      { class: "view" },
      h("h1", {}, "Health"),
      h("section", { class: "card" }, this.figures.node, this.about),
      h("section", { class: "card" }, h("h2", {}, "Tiers"), this.tierTable, this.noTiers),
      h("section", { class: "card" }, h("h2", {}, "Topics whose offload fails"), this.failing, this.noFailing),
    );
  }

  async refresh() {
    const [process, tiers, topics] = [await get("afterglow/health"), await get("afterglow/tiers"), await get("afterglow/topics?sort=state&descending=true&limit=50")];
    const broken = tiers.filter((tier) => !tier.available).length;
    const state = process.metadata_error ? ["Impaired", "metadata does not answer", undefined, "alarm"] : broken ? ["Impaired", broken === 1 ? "a tier is unavailable" : `${count(broken)} tiers are unavailable`, undefined, "alarm"] : ["Healthy", `metadata answers in ${Math.max(Math.round(1000 * process.metadata_seconds), 1)} ms`];
    const memory = (used, budget) => (used === undefined ? ["–", ""] : [bytes(used), budget ? `of ${bytes(budget)}` : ""]);
    this.figures.update({
      State: state,
      "Running for": [span((process.now_ms - process.started_ms) / 1000), `since ${time(process.started_ms)}`],
      Connections: [process.connections === undefined ? "–" : count(process.connections), "of clients"],
      "Topics open": [count(process.open_topics), `of ${count(process.topics)}`],
      Cache: memory(process.cache_bytes, process.cache_budget_bytes),
      "Offload buffer": memory(process.buffer_bytes, process.buffer_budget_bytes),
    });
    say(this.about, [`Afterglow ${process.version}, cluster ${process.cluster}.`, process.metadata_error, process.attachedTo && `Attached to cluster ${process.attachedTo.cluster} at ${process.attachedTo.adminUrl}.`].filter(Boolean).join(" "));
    this.showTiers(tiers, process.now_ms);
    const failing = topics.topics.filter((row) => row.failing);
    keyed(this.failing, this.knownFailing, failing.map((row) => [row.topic, row]), (row) => h("li", {}, h("a", { href: topicAddress(row.topic) }, row.topic.replace("persistent://", ""))), () => {});
    this.failing.hidden = !failing.length;
    this.noFailing.hidden = Boolean(failing.length);
  }

  showTiers(tiers, nowMs) {
    this.tierTable.hidden = !tiers.length;
    this.noTiers.hidden = Boolean(tiers.length);
    keyed(
      this.tiers,
      this.knownTiers,
      tiers.map((tier) => [tier.location, tier]),
      (tier) => h("tr", {}, h("th", { scope: "row", "data-label": "Tier" }, tier.location), h("td", { "data-label": "State" }, h("span", { class: "badge" })), h("td", { "data-label": "Since" }), h("td", { "data-label": "Reason" })),
      (row, tier) => {
        const [, state, since, reason] = row.children;
        set(state.firstElementChild, { "data-mode": tier.available ? "streaming" : "failing" });
        say(state.firstElementChild, tier.available ? "Available" : "Unavailable");
        say(since, tier.available ? "–" : `${time(tier.since_ms)}, for ${span((nowMs - tier.since_ms) / 1000)}`);
        say(reason, tier.available ? "–" : [tier.error, tier.cure].filter(Boolean).join("; "));
      },
    );
  }
}
