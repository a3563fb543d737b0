// Head of a topic's views: its name, its tabs, and actions on the whole topic.

import { deleteTopic, exportTopic } from "./topic_actions.js";
import { h } from "./dom.js";
import { parseTopic } from "./format.js";
import { topicAddress } from "./routes.js";

const TABS = [
  ["log", "Log"],
  ["messages", "Messages"],
  ["clients", "Clients"],
  ["schema", "Schema"],
];

/**
 * The head of a view.
 * @param topic The topic's name.
 * @param tab The tab of the view.
 * @param more Nodes of this view, such as its buttons.
 * @param options `partitions`: their number for a partitioned topic; `readOnly`: the process is attached to a cluster.
 */
export function topicHead(topic, tab, more = [], { partitions = 0, readOnly = false } = {}) {
  const { namespace, local } = parseTopic(topic);
  const base = /^(.*)-partition-\d+$/.exec(topic)?.[1];
  const tabs = TABS.filter(([name]) => (readOnly ? name === "log" : !(partitions && name === "messages")));
  const button = (label, act) => h("button", { type: "button", class: "quiet", onclick: act }, label);
  return h(
    "div",
    { class: "head" },
    h(
      "div",
      { class: "topic-head" },
      h("div", {}, h("p", { class: "crumbs" }, h("a", { href: "#/" }, "Topics"), ` / ${namespace}`, base && [" / ", h("a", { href: topicAddress(base) }, parseTopic(base).local)]), h("h1", {}, local)),
      more,
      button("Export…", () => exportTopic(topic)),
      !readOnly && button("Delete…", () => deleteTopic(topic, partitions)),
    ),
    tabs.length > 1 && h("nav", { class: "tabs", "aria-label": "Views of the topic" }, tabs.map(([name, label]) => h("a", { href: topicAddress(topic, name), "aria-current": name === tab ? "page" : null }, label))),
  );
}
