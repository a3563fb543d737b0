// Table of a topic's subscriptions.

import { h, keyed, say } from "./dom.js";
import { compact, count } from "./format.js";

export class Subscriptions {
  /** @param seek Resets a subscription. */
  constructor(seek) {
    this.seek = seek;
    this.known = new Map();
    this.body = h("tbody", {});
    this.table = h("table", { class: "plain" }, h("thead", {}, h("tr", {}, ["Subscription", "Acknowledged up to", "Backlog", "Consumers"].map((name, index) => h("th", { scope: "col", class: index ? "number" : null }, name)), h("th", {}, h("span", { class: "hidden" }, "Action")))), this.body);
    this.empty = h("p", { class: "empty" }, "No subscriptions.");
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
        const row = h("tr", {}, h("th", { scope: "row" }, cursor.name), h("td", { class: "number" }), h("td", { class: "number" }), h("td", { class: "number" }), h("td", { class: "action" }, h("button", { type: "button", class: "quiet", "aria-label": `Seek ${cursor.name}`, hidden: cursor.durable === false, onclick: () => this.seek(row.cursor) }, "Seek…")));
        return row;
      },
      (row, cursor) => {
        row.cursor = cursor;
        const [, at, backlog, consumers] = row.children;
        say(at, cursor.mark_delete ?? "–");
        say(backlog, cursor.backlog === undefined ? "–" : compact(cursor.backlog));
        say(consumers, cursor.consumers === undefined ? "–" : count(cursor.consumers));
      },
    );
  }
}
