// Details of one message, and saving of messages as a file.

import { h } from "./dom.js";
import { bytes, time } from "./format.js";
import { topicAddress } from "./routes.js";
import { copy } from "./topic_actions.js";

const KEPT_MS = 60_000; // until a saved file is freed

/** The details of a message; everything in it is untrusted and becomes text. */
export function messageDetails(topic, message, at) {
  const link = `${location.origin}${location.pathname}${topicAddress(topic, "messages", { from: at })}`;
  const pairs = [
    ["Published", time(message.publish_ms)],
    ["Written by the broker", message.broker_ms && time(message.broker_ms)],
    ["Event time", message.event_ms && time(message.event_ms)],
    ["Deliver at", message.deliver_ms && time(message.deliver_ms)],
    ["Producer", message.producer],
    ["Sequence id", message.sequence_id],
    ["Index", message.index],
    ["Batch index", message.batch_index >= 0 && message.batch_index],
    ["Ordering key", message.ordering_key && `${message.ordering_key} (base64)`],
    ["Schema version", message.schema_version],
    ["Compression", message.compression],
    ["Chunk", message.chunk],
    ["Transaction", message.transaction && "yes"],
    ["Encrypted", message.encrypted && "yes"],
    ["Value", message.value_bytes === null ? "null" : `${bytes(message.value_bytes)}, ${message.format}`],
  ].filter(([, value]) => value !== null && value !== false && value !== undefined);
  return h(
    "div",
    { class: "message" },
    message.problem && h("p", { class: "problem" }, message.problem),
    message.value !== null && h("pre", { tabindex: 0, "aria-label": "Value" }, message.value),
    message.value === null && message.value_base64 && h("pre", { tabindex: 0, "aria-label": "Value" }, dump(message.value_base64)),
    message.truncated && h("p", { class: "hint" }, "Shown in part: a client, or afterglow read, gets the whole message."),
    message.properties.length > 0 && h("dl", { class: "pairs properties" }, message.properties.map(([name, value]) => h("div", { class: "code" }, h("dt", {}, name), h("dd", {}, value)))),
    h("dl", { class: "pairs" }, pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, String(value))))),
    h("div", { class: "buttons" }, h("button", { type: "button", class: "quiet", onclick: () => copy(link) }, "Copy link"), message.value !== null && h("button", { type: "button", class: "quiet", onclick: () => copy(message.value) }, "Copy value")),
  );
}

/** Bytes as hexadecimal and text, sixteen to a line. */
function dump(base64) {
  const data = atob(base64);
  const lines = [];
  for (let at = 0; at < data.length; at += 16) {
    const part = [...data.slice(at, at + 16)];
    const hex = part.map((char) => char.charCodeAt(0).toString(16).padStart(2, "0")).join(" ");
    lines.push(`${at.toString(16).padStart(4, "0")}  ${hex.padEnd(47)}  ${part.map((char) => (char >= " " && char <= "~" ? char : ".")).join("")}`);
  }
  return lines.join("\n");
}

/** Save messages as JSON lines, as they are shown. */
export function save(topic, messages) {
  const lines = messages.map((message) => `${JSON.stringify({ topic: `persistent://${topic}`, ...message })}\n`);
  const url = URL.createObjectURL(new Blob(lines, { type: "application/x-ndjson" }));
  const link = h("a", { href: url, download: `${topic.replaceAll("/", "_")}.jsonl`, hidden: true });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), KEPT_MS);
}
