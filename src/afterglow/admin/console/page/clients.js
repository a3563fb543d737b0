// View of the clients of a topic: connected producers and consumers, and subscriptions.

import { call, get, topicPath } from "./api.js";
import { h, keyed, say } from "./dom.js";
import { bytesPerSecond, compact, count, parseTopic, perSecond, time } from "./format.js";
import { openDialog } from "./dialog.js";
import { seek } from "./seek.js";
import { skip } from "./skip.js";
import { Subscriptions } from "./subscriptions.js";
import { toast } from "./notices.js";
import { topicHead } from "./topic_head.js";

export class ClientsView {
  static everyMs = 3000;

  constructor(topic, ask, partitions) {
    this.topic = topic;
    this.partitions = partitions;
    this.title = `Clients of ${parseTopic(topic).local}`;
    this.producers = new ClientTable("Producers", ["Producer", "Access", "In"], "No producer is connected.");
    this.consumers = new ClientTable("Consumers", ["Consumer", "Subscription", "Out", "Unacknowledged"], "No consumer is connected.");
    this.subscriptions = new Subscriptions({
      seek: (cursor) => seek(topic, cursor, partitions ? null : this.log, ask),
      skip: (cursor) => skip(topic, cursor, partitions, ask),
      remove: (cursor) => removeSubscription(topic, cursor, ask),
    });
    this.node = h("div", { class: "view" }, topicHead(topic, "clients", [], { partitions }), this.subscriptions.node, this.producers.node, this.consumers.node);
  }

  async refresh() {
    const stats = await get(topicPath(this.topic, this.partitions ? "partitioned-stats" : "stats"));
    if (!this.partitions) this.log = await get(topicPath(this.topic, "log"));
    const marks = new Map((this.log?.cursors ?? []).map((cursor) => [cursor.name, cursor]));
    const subscriptions = Object.entries(stats.subscriptions);
    this.subscriptions.update(
      subscriptions.map(([name, found]) => ({
        name,
        mark_delete: marks.get(name)?.mark_delete,
        backlog: found.msgBacklog,
        consumers: found.consumers.length,
        durable: found.isDurable,
        type: found.type,
      })),
    );
    this.producers.update(
      stats.publishers.map((found) => [found, [found.producerName, found.accessMode, `${perSecond(found.msgRateIn)}, ${bytesPerSecond(found.msgThroughputIn)}`]]),
    );
    this.consumers.update(
      subscriptions.flatMap(([name, { consumers }]) =>
        consumers.map((found) => [found, [found.consumerName || "–", name, `${perSecond(found.msgRateOut)}, ${bytesPerSecond(found.msgThroughputOut)}`, count(found.unackedMessages)]]),
      ),
    );
  }
}

/** A table of clients: their own columns, then address, version and time of the connection. */
class ClientTable {
  constructor(title, names, empty) {
    this.known = new Map();
    this.body = h("tbody", {});
    this.table = h("table", { class: "cards", hidden: true }, h("caption", { class: "hidden" }, title), h("thead", {}, h("tr", {}, [...names, "Address", "Client", "Connected since"].map((name) => h("th", { scope: "col" }, name)))), this.body);
    this.names = [...names, "Address", "Client", "Connected since"];
    this.empty = h("p", { class: "empty", hidden: true }, empty);
    this.heading = h("h2", {}, title);
    this.title = title;
    this.node = h("section", { class: "card" }, this.heading, this.table, this.empty);
  }

  update(clients) {
    this.table.hidden = !clients.length;
    this.empty.hidden = Boolean(clients.length);
    say(this.heading, clients.length ? `${this.title} (${compact(clients.length)})` : this.title);
    keyed(
      this.body,
      this.known,
      clients.map(([client, cells], index) => [`${index}:${cells.slice(0, 2).join("/")}`, [...cells, client.address?.replace(/^\//, "") ?? "this broker", client.clientVersion ?? "–", time(Date.parse(client.connectedSince))]]),
      () => h("tr", {}, this.names.map((name, index) => h(index ? "td" : "th", { scope: index ? null : "row", "data-label": name }))),
      (row, cells) => cells.forEach((text, index) => say(row.children[index], text)),
    );
  }
}

/** Delete a subscription, after confirmation. */
function removeSubscription(topic, cursor, onDone) {
  openDialog({
    title: `Delete ${cursor.name}`,
    body: [h("p", { class: "said" }, `The subscription is deleted: messages are no longer kept for it, and a consumer that subscribes again begins anew. ${cursor.backlog ? `Its backlog of ${count(cursor.backlog)} entries is no longer delivered.` : "It has no backlog."}`)],
    confirm: "Delete",
    act: async () => {
      await call("DELETE", topicPath(topic, "subscription", cursor.name));
      toast(`${cursor.name} was deleted.`);
      onDone();
    },
  });
}
