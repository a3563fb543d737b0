// Table of a topic's subscriptions, with their actions.

import { h, keyed, say } from "./dom.js";
import { acknowledged, compact, count } from "./format.js";

const LABELS = { seek: "Seek", skip: "Skip", remove: "Delete" };

export class Subscriptions {
  /** @param actions What can be done to a subscription, by the names of `LABELS`. */
  constructor(actions) {
    this.actions = Object.entries(actions);
    this.known = new Map();
    this.body = h("tbody", {});
    const names = ["Subscription", "Acknowledged up to", "Backlog", "Consumers"];
    this.table = h("table", { class: "plain", hidden: true }, h("caption", { class: "hidden" }, "Subscriptions"), h("thead", {}, h("tr", {}, names.map((name, index) => h("th", { scope: "col", class: index ? "number" : null }, name)), h("th", { scope: "col" }, h("span", { class: "hidden" }, "Actions")))), this.body);
    this.empty = h("p", { class: "empty", hidden: true }, "No subscriptions.");
    this.node = h("section", { class: "card" }, h("h2", {}, "Subscriptions"), this.table, this.empty);
  }

  update(cursors) {
    this.table.hidden = !cursors.length;
    this.empty.hidden = Boolean(cursors.length);
    keyed(
      this.body,
      this.known,
      cursors.map((cursor) => [cursor.name, cursor]),
      (cursor) => {
        const buttons = this.actions.map(([name, act]) => h("button", { type: "button", class: "quiet", "aria-label": `${LABELS[name]} ${cursor.name}`, hidden: cursor.durable === false, onclick: () => act(row.cursor) }, `${LABELS[name]}…`));
        const row = h("tr", {}, h("th", { scope: "row" }, h("span", { class: "main" }, cursor.name), h("span", { class: "below" })), h("td", { class: "number" }), h("td", { class: "number" }), h("td", { class: "number" }), h("td", { class: "action" }, h("div", { class: "actions" }, buttons)));
        return row;
      },
      (row, cursor) => {
        row.cursor = cursor;
        const [name, at, backlog, consumers] = row.children;
        say(name.lastElementChild, cursor.durable === false ? "Reader" : cursor.type && cursor.type !== "None" ? cursor.type : "");
        say(at, acknowledged(cursor.mark_delete));
        say(backlog, cursor.backlog === undefined ? "–" : compact(cursor.backlog));
        say(consumers, cursor.consumers === undefined ? "–" : count(cursor.consumers));
      },
    );
  }
}
