// Tiers that are unavailable, with time and reason.

import { h, keyed, say } from "./dom.js";
import { span, time } from "./format.js";

export class Outages {
  constructor() {
    this.known = new Map();
    this.node = h("div", { class: "outages", role: "alert" });
  }

  update(outages, nowMs) {
    keyed(
      this.node,
      this.known,
      outages.map((outage) => [outage.location, outage]),
      () => h("p", { class: "problem" }),
      (node, { location, since_ms: since, error }) => say(node, `The tier ${location} has been unavailable since ${time(since)}, for ${span((nowMs - since) / 1000)}: ${error}. Pending work is retried once it answers.`),
    );
  }
}
