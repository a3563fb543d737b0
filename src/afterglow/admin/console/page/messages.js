// View of a topic's messages: windows at a position, a time, or an end of the topic, with search.

import { get, topicPath } from "./api.js";
import { h, say, set } from "./dom.js";
import { bytes, count, parseTopic, plural, time } from "./format.js";
import { topicAddress } from "./routes.js";
import { messageDetails, save } from "./message.js";
import { topicHead } from "./topic_head.js";

const WAYS = [
  ["newest", "Newest"],
  ["earliest", "Oldest"],
  ["time", "From a time"],
  ["position", "From a position"],
];
const POSITION = /^\d+:\d+(:\d+)?$/;
const ORIGINS = {
  cache: ["Memory", "The newest entries are kept in the memory of the broker."],
  buffer: ["Memory", "The entry waits in memory for its upload."],
  hot: ["Hot log", "Read from the hot log."],
  tier: ["Tier", "Read from an object in the tier."],
};

export class MessagesView {
  static everyMs = 3000;

  constructor(topic, query, ask) {
    this.topic = topic;
    this.ask = ask;
    this.title = `Messages of ${parseTopic(topic).local}`;
    this.way = h("select", { "aria-label": "Where to begin", onchange: () => this.showWay() }, WAYS.map(([value, label]) => h("option", { value }, label)));
    this.time = h("input", { type: "datetime-local", step: 1, "aria-label": "Time", hidden: true });
    this.position = h("input", { type: "text", placeholder: "LEDGER:ENTRY", "aria-label": "Position", autocomplete: "off", hidden: true });
    this.search = h("input", { type: "search", placeholder: "Search keys, properties, values", "aria-label": "Text that messages contain", autocomplete: "off", spellcheck: "false", maxlength: 200 });
    this.follow = h("input", { type: "checkbox", id: "follow" });
    this.followLabel = h("label", { class: "check" }, this.follow, h("span", {}, "Follow"));
    this.problem = h("p", { class: "problem", role: "alert", hidden: true });
    this.form = h("form", { class: "tools", role: "search", novalidate: true, onsubmit: (event) => this.submit(event) }, this.way, this.time, this.position, this.search, h("button", { type: "submit", class: "primary" }, "Show"), this.followLabel);
    this.older = h("button", { type: "button", class: "quiet", onclick: () => this.turn({ before: this.found.begin }) }, "Older");
    this.newer = h("button", { type: "button", class: "quiet", onclick: () => this.turn({ from: this.found.end }) }, "Newer");
    this.saveButton = h("button", { type: "button", class: "quiet", onclick: () => save(this.topic, this.found.messages) }, "Save");
    this.summary = h("p", { class: "hint", role: "status" });
    this.body = h("tbody", {});
    this.table = h("table", { class: "messages", hidden: true }, h("caption", { class: "hidden" }, "Messages"), h("thead", {}, h("tr", {}, ["Position", "Published", "Key", "Value", "Read from"].map((name) => h("th", { scope: "col" }, name)))), this.body);
    this.empty = h("p", { class: "empty", hidden: true });
    this.node = h(
      "div",
      { class: "view" },
      topicHead(topic, "messages"),
      h("section", { class: "card" }, this.form, this.problem, h("div", { class: "tools" }, this.summary, h("nav", { class: "pager", "aria-label": "Windows of messages" }, this.older, this.newer, this.saveButton)), this.table, this.empty),
    );
    this.navigate(query);
  }

  /** Whether an address is that of another window of the same topic. */
  accepts({ page, topic, tab }) {
    return page === "topic" && tab === "messages" && topic === this.topic;
  }

  /** Show the window of an address. */
  navigate(query) {
    this.query = query;
    const at = query.get("from") ?? query.get("before");
    const way = query.get("time") ? "time" : at === "earliest" ? "earliest" : at ? "position" : "newest";
    this.way.value = way;
    this.search.value = query.get("search") ?? "";
    if (way === "time") this.time.value = local(Number(query.get("time")));
    if (way === "position") this.position.value = at;
    this.isNewest = way === "newest";
    this.showWay();
    this.loaded = false;
  }

  showWay() {
    this.time.hidden = this.way.value !== "time";
    this.position.hidden = this.way.value !== "position";
    this.followLabel.hidden = this.way.value !== "newest";
    if (this.way.value === "time" && !this.time.value) this.time.value = local(Date.now() - 15 * 60_000);
  }

  submit(event) {
    event.preventDefault();
    const query = { search: this.search.value.trim() };
    const way = this.way.value;
    if (way === "earliest") query.from = "earliest";
    if (way === "time") query.time = new Date(this.time.value).getTime();
    if (way === "position") query.from = this.position.value.trim();
    const wrong = way === "time" && Number.isNaN(query.time) ? "Enter a time." : way === "position" && !POSITION.test(query.from) ? "Enter a position as LEDGER:ENTRY or LEDGER:ENTRY:BATCH, such as 3:120." : "";
    this.complain(wrong, way === "time" ? this.time : this.position);
    if (!wrong) this.go(query);
  }

  turn(query) {
    this.go({ ...query, search: this.query.get("search") });
  }

  /** Change the address, which shows its window; the same address loads it again. */
  go(query) {
    const address = topicAddress(this.topic, "messages", query);
    if (location.hash === address) {
      this.loaded = false;
      this.ask();
    } else location.hash = address;
  }

  complain(text, input = null) {
    this.problem.hidden = !text;
    say(this.problem, text);
    for (const each of [this.time, this.position]) set(each, { "aria-invalid": String(Boolean(text) && each === input) });
  }

  async refresh() {
    if (this.loaded && !(this.isNewest && this.follow.checked)) return;
    const { query } = this;
    this.older.disabled = this.newer.disabled = true;
    let found;
    try {
      found = await get(`${topicPath(this.topic, "messages")}?${query}`);
    } catch (error) {
      if (error.silent || error.status === 401 || error.status === 404) throw error;
      this.loaded = true;
      this.complain(error.message);
      return;
    }
    if (query !== this.query) return; // another window is wanted meanwhile
    this.loaded = true;
    this.complain("");
    this.show(found);
  }

  show(found) {
    this.found = found;
    const { messages } = found;
    this.older.disabled = !found.has_older;
    this.newer.disabled = !found.has_newer;
    this.saveButton.disabled = !messages.length;
    const searched = this.query.get("search") ? ` among ${plural(found.examined, "message")} from ${found.begin} to ${found.end}` : messages.length ? `, from ${positionOf(messages[0])} to ${positionOf(messages.at(-1))}` : "";
    say(this.summary, [`${plural(messages.length, "message")}${searched}`, ...found.problems].join(" · "));
    const open = new Set([...this.body.querySelectorAll("[aria-expanded=true]")].map((button) => button.dataset.position));
    this.body.replaceChildren(...messages.flatMap((message) => this.rows(message, open.has(positionOf(message)))));
    this.table.hidden = !messages.length;
    this.empty.hidden = Boolean(messages.length);
    say(this.empty, this.emptyText(found));
  }

  emptyText(found) {
    if (!this.query.get("search")) return found.has_older || found.has_newer ? "No messages here. Use Older or Newer." : "The topic has no messages.";
    const way = this.isNewest || this.query.get("before") ? ["has_older", "Older"] : ["has_newer", "Newer"];
    return `None of these messages contains “${this.query.get("search")}”.${found[way[0]] ? ` A search covers a few megabytes at a time: ${way[1]} continues it.` : ""}`;
  }

  rows(message, isOpen) {
    const at = positionOf(message);
    const [origin, meaning] = ORIGINS[message.origin];
    const value = h("button", { type: "button", class: "value", "aria-expanded": "false", "aria-label": `Details of message ${at}`, "data-position": at, onclick: () => toggle() }, inline(message));
    const row = h(
      "tr",
      { "data-problem": Boolean(message.problem) },
      h("th", { scope: "row" }, h("a", { href: topicAddress(this.topic, "messages", { from: at }) }, at)),
      h("td", { class: "when" }, time(message.publish_ms)),
      h("td", { class: "key-text" }, message.key ?? "–"),
      h("td", {}, value),
      h("td", {}, h("span", { class: "badge", "data-origin": message.origin, title: meaning }, origin)),
    );
    const cell = h("td", { colspan: 5 });
    const more = h("tr", { class: "details", hidden: true }, cell);
    const toggle = () => {
      more.hidden = !more.hidden;
      set(value, { "aria-expanded": String(!more.hidden) });
      if (!more.hidden && !cell.firstChild) cell.append(messageDetails(this.topic, message, at));
    };
    if (isOpen) toggle();
    return [row, more];
  }
}

/** The position of a message, as an address and as the API name it. */
export const positionOf = (message) => `${message.ledger_id}:${message.entry_id}${message.batch_index > 0 ? `:${message.batch_index}` : ""}`;

/** A value on one line. */
function inline(message) {
  if (message.value !== null) return message.value.slice(0, 300).replace(/\s+/g, " ") || "(empty)";
  if (message.value_base64) return `${bytes(message.value_bytes)}, not text`;
  if (message.problem) return message.problem;
  return message.value_bytes === null ? "null" : count(message.value_bytes);
}

/** The format of a time input: in the browser's time zone, without the zone. */
function local(ms) {
  const date = new Date(ms);
  return Number.isNaN(date.getTime()) ? "" : new Date(ms - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}
