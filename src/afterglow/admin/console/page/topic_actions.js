// Dialogs on whole topics: create, delete, export.

import { call, topicPath } from "./api.js";
import { openDialog } from "./dialog.js";
import { h } from "./dom.js";
import { plural } from "./format.js";
import { toast } from "./notices.js";
import { topicAddress } from "./routes.js";

const NAME = /^(?:persistent:\/\/)?([^/\s]+)\/([^/\s]+)\/([^/\s]+)$/;
const PLAIN = /^[^/\s]+$/;

/** The full name that a user means: `NAME` is in `public/default`; null if it is not a name. */
function meant(text) {
  const given = text.trim();
  if (PLAIN.test(given)) return `public/default/${given}`;
  return NAME.test(given) ? given.replace(/^persistent:\/\//, "") : null;
}

/** Create a topic, partitioned or not. */
export function createTopic() {
  const name = h("input", { type: "text", name: "topic", autocomplete: "off", spellcheck: "false", placeholder: "tenant/namespace/name", oninput: () => update() });
  const partitions = h("input", { type: "number", name: "partitions", min: 0, step: 1, value: "0", oninput: () => update() });
  const effect = h("p", { class: "said", "aria-live": "polite" });
  const dialog = openDialog({
    title: "Create a topic",
    body: [
      h("label", { class: "field" }, h("span", {}, "Name"), name, h("small", {}, "A name without slashes is in public/default.")),
      h("label", { class: "field" }, h("span", {}, "Partitions"), partitions, h("small", {}, "0: the topic is not partitioned.")),
      effect,
    ],
    confirm: "Create",
    act: async () => {
      const topic = meant(name.value);
      const count = Number(partitions.value);
      if (count) await call("PUT", topicPath(topic, "partitions"), count);
      else await call("PUT", topicPath(topic));
      toast(`${topic} was created.`);
      location.hash = topicAddress(topic);
    },
  });
  const update = () => {
    const topic = meant(name.value);
    const count = partitions.value === "" ? -1 : Number(partitions.value);
    const valid = topic && Number.isInteger(count) && count >= 0;
    effect.textContent = !topic
      ? "Enter a name, such as public/default/orders."
      : !valid
        ? "Enter a whole number of partitions, or 0."
        : count
          ? `persistent://${topic} is created with ${plural(count, "partition")}. Their number can be raised later, and not lowered.`
          : `persistent://${topic} is created without partitions.`;
    dialog.enable(Boolean(valid));
  };
  update();
}

/** Delete a topic with its data, once its name was typed. */
export function deleteTopic(topic, partitions) {
  const local = topic.split("/").at(-1);
  const typed = h("input", { type: "text", name: "name", autocomplete: "off", spellcheck: "false", oninput: () => update() });
  const force = h("input", { type: "checkbox", name: "force" });
  const dialog = openDialog({
    title: `Delete ${local}`,
    body: [
      h("p", { class: "said" }, `All messages of persistent://${topic}${partitions ? `, of ${plural(partitions, "partition")},` : ""} are deleted, in the hot log and in the tier, with its subscriptions and schemas. This cannot be undone.`),
      h("label", { class: "field" }, h("span", {}, `Type ${local} to confirm`), typed),
      h("label", { class: "check" }, force, h("span", {}, "Also if clients are connected; they are disconnected")),
    ],
    confirm: "Delete",
    act: async () => {
      await call("DELETE", `${partitions ? topicPath(topic, "partitions") : topicPath(topic)}?force=${force.checked}`);
      toast(`${topic} was deleted.`);
      location.hash = "#/";
    },
  });
  const update = () => dialog.enable(typed.value === local);
  update();
}

/** Show the commands that read or export a topic. */
export function exportTopic(topic) {
  const full = `persistent://${topic}`;
  const source = location.origin;
  const quoted = `'${full.replaceAll("'", "'\\''")}'`;
  const commands = [
    ["Parquet files, by Spark; repeated runs add what is new", `afterglow export ${source} ${quoted} --to parquet:DIRECTORY`],
    ["The same, continuously", `afterglow export ${source} ${quoted} --to parquet:DIRECTORY --continuous`],
    ["Messages as JSON lines, without Spark", `afterglow read ${source} ${quoted} --format jsonl`],
  ];
  openDialog({
    title: `Export ${topic.split("/").at(-1)}`,
    body: [
      h("p", { class: "hint" }, "Exports run where their data goes, not in the server: run one of these commands there. The messages of a few pages can be saved on the tab Messages."),
      commands.map(([what, command]) => h("div", { class: "command" }, h("p", {}, what), h("code", {}, command), h("button", { type: "button", class: "quiet", onclick: () => copy(command) }, "Copy"))),
    ],
    confirm: "Close",
    act: async () => {},
    informs: true,
  });
}

/** Copy text; the clipboard is available on https and localhost only. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast("Copied.");
  } catch {
    toast("The browser does not permit to copy here: select the text instead.", "problem");
  }
}
