// View of a topic's schema: all versions, newest first.

import { get } from "./api.js";
import { h } from "./dom.js";
import { parseTopic, plural, time } from "./format.js";
import { topicHead } from "./topic_head.js";

export class SchemaView {
  static everyMs = 10_000;

  constructor(topic, partitions) {
    this.path = `schemas/${topic.split("/").map(encodeURIComponent).join("/")}/schemas`;
    this.title = `Schema of ${parseTopic(topic).local}`;
    this.summary = h("p", { class: "hint" });
    this.list = h("div", { class: "versions" });
    this.node = h("div", { class: "view" }, topicHead(topic, "schema", [], { partitions }), h("section", { class: "card" }, h("div", { class: "card-head" }, h("h2", {}, "Versions"), this.summary), this.list));
  }

  async refresh() {
    const versions = (await get(this.path)).getSchemaResponses.toReversed();
    const shown = JSON.stringify(versions);
    if (shown === this.shown) return; // what is open stays open
    this.shown = shown;
    this.summary.textContent = versions.length ? plural(versions.length, "version") : "";
    this.list.replaceChildren(
      ...(versions.length ? versions.map((version, index) => this.version(version, index === 0)) : [h("p", { class: "empty" }, "No schema: messages are bytes. A producer with a schema, or pulsar-admin schemas upload, adds one.")]),
    );
  }

  version({ version, type, timestamp, data, properties }, isNewest) {
    const pairs = Object.entries(properties);
    return h(
      "details",
      { open: isNewest },
      h("summary", {}, h("strong", {}, `Version ${version}`), " ", h("span", { class: "badge" }, type), h("span", { class: "hint" }, ` since ${time(timestamp)}`)),
      data && h("pre", { tabindex: 0, "aria-label": `Definition of version ${version}` }, pretty(data)),
      !data && h("p", { class: "hint" }, "The type has no definition."),
      pairs.length > 0 && h("dl", { class: "pairs" }, pairs.map(([name, value]) => h("div", { class: "code" }, h("dt", {}, name), h("dd", {}, value)))),
    );
  }
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
