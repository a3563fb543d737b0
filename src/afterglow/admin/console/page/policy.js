// What holds for a topic, where it comes from, and changing it for this topic alone.

import { call, get, topicPath } from "./api.js";
import { openDialog } from "./dialog.js";
import { h } from "./dom.js";
import { bytes, parseBytes, parseSpan, plural, span } from "./format.js";
import { toast } from "./notices.js";

const off = (format) => (value) => (value === null || value < 0 ? "off" : format(value));
const orOff = (parse) => (text) => (/^(off|-1)$/i.test(text) ? -1 : parse(text));
const scaled = (parse, factor) => (text) => {
  const found = parse(text);
  return found === null ? null : found / factor;
};

const SIZE = { shown: off(bytes), parse: orOff(parseBytes), example: "64 MiB" };
const SECONDS = { shown: off(span), parse: orOff(scaled(parseSpan, 1000)), example: "10 min" };
const MILLIS = { shown: off((value) => span(value / 1000)), parse: orOff(parseSpan), example: "4 h" };
const choice = (words) => ({ words, shown: (value) => words[value] ?? String(value) });

/** What can be changed here. */
export const FIELDS = [
  { key: "streamingOffloadEnabled", label: "Streaming", help: "Goes to the tier while it is written.", ...choice({ true: "on", false: "off" }) },
  { key: "maxOffloadSegmentSizeInBytes", short: "maxSizePerOffloadSegmentMbytes", label: "Segment size", help: "A segment is closed when it has so much.", ...SIZE },
  { key: "maxOffloadSegmentRolloverTimeInSeconds", short: "maxOffloadSegmentRolloverTimeMinutes", label: "Segment time", help: "Or so long after its first entry.", ...SECONDS },
  { key: "managedLedgerOffloadThresholdInBytes", label: "Threshold by size", help: "Without streaming: closed ledgers beyond so much go.", ...SIZE, example: "10 GiB" },
  { key: "managedLedgerOffloadThresholdInSeconds", label: "Threshold by age", help: "Without streaming: ledgers go so long after their close.", ...SECONDS, example: "1 h" },
  { key: "managedLedgerOffloadDeletionLagInMillis", label: "Deletion lag", help: "The hot copy goes so long after the offload.", ...MILLIS },
  { key: "managedLedgerOffloadedReadPriority", label: "Read priority", help: "Which copy serves a read while both exist.", ...choice({ TIERED_STORAGE_FIRST: "tier first", BOOKKEEPER_FIRST: "hot log first" }) },
];

const ORIGINS = { topic: "this topic", namespace: "its namespace", broker: "the broker", default: "the default" };
const EXTRA = "managedLedgerExtraConfigurations";

/** The card that shows what holds. */
export class PolicyCard {
  constructor(topic, changed) {
    this.topic = topic;
    this.changed = changed;
    this.rows = null;
    this.list = h("dl", { class: "policy" });
    this.button = h("button", { type: "button", class: "quiet", disabled: true, onclick: () => this.change() }, "Change…");
    this.note = h("p", { class: "hint", hidden: true });
    this.node = h("section", { class: "card" }, h("div", { class: "card-head" }, h("h2", {}, "Policy"), this.button), this.list, this.note);
  }

  /** @param base The partitioned topic that a partition belongs to, which has the policies; else null. */
  async refresh(base) {
    this.target = base ?? this.topic;
    const found = await get(topicPath(this.topic, "policy"));
    this.rows = new Map(found.map((row) => [row.name, row]));
    this.button.disabled = false;
    this.note.hidden = base === null;
    this.note.textContent = base === null ? "" : `It has the policies of ${base}, and so have all its partitions.`;
    this.list.replaceChildren(
      ...FIELDS.map((field) => {
        const row = this.rows.get(field.key);
        return h("div", {}, h("dt", { title: field.key }, field.label), h("dd", {}, h("span", { class: "main" }, field.shown(row.value)), h("span", { class: "origin", "data-origin": row.origin }, `from ${ORIGINS[row.origin] ?? row.origin}`)));
      }),
    );
  }

  change() {
    changePolicy(this.target, this.rows, this.changed);
  }
}

function changePolicy(topic, rows, changed) {
  const inputs = FIELDS.map((field) => {
    const row = rows.get(field.key);
    const here = row.origin === "topic";
    const inherited = here ? "as its namespace or the broker says" : `${field.shown(row.value)}, from ${ORIGINS[row.origin] ?? row.origin}`;
    const input = field.words
      ? h("select", { name: field.key, onchange: () => update() }, h("option", { value: "" }, inherited), Object.entries(field.words).map(([value, word]) => h("option", { value, selected: here && String(row.value) === value }, word)))
      : h("input", { type: "text", name: field.key, value: here ? field.shown(row.value) : "", placeholder: inherited, autocomplete: "off", spellcheck: "false", oninput: () => update() });
    return { field, row, here, input, first: input.value };
  });
  const told = h("div", { class: "said", "aria-live": "polite" });
  const dialog = openDialog({
    title: "Policy of this topic",
    body: [
      h("p", { class: "hint" }, `For ${topic} alone. What is left empty comes from its namespace or the broker.`),
      h("div", { class: "fields" }, inputs.map(({ field, input }) => h("label", { class: "field" }, h("span", {}, field.label), input, h("small", {}, field.help)))),
      told,
    ],
    confirm: "Apply",
    act: async () => {
      await apply(topic, changes(inputs));
      toast("The policy was changed.");
      changed();
    },
  });
  const update = () => {
    const wrong = inputs.filter(({ field, input, first }) => input.value !== first && input.value && !field.words && field.parse(input.value) === null);
    if (wrong.length) {
      told.replaceChildren(h("p", {}, `${wrong[0].field.label}: ${wrong[0].input.value} is not understood; give it as ${wrong[0].field.example}, or off.`));
      dialog.enable(false);
      return;
    }
    const found = changes(inputs);
    told.replaceChildren(
      found.length
        ? h("ul", {}, found.map(({ field, row, value }) => h("li", {}, `${field.label}: ${field.shown(row.value)} → ${value === undefined ? "as its namespace or the broker says" : field.shown(value)}`)))
        : h("p", {}, "Nothing is changed yet."),
      ...found.flatMap(({ field, value }) => (field.key === "streamingOffloadEnabled" && value !== undefined ? [h("p", {}, value ? "From the next look on, everything that is not in the tier goes there in segments." : "The ledger is closed, the last segment ends with it; from there on whole ledgers go, by the thresholds.")] : [])),
      ...found.flatMap(({ field, value }) => (field.key === "managedLedgerOffloadDeletionLagInMillis" && value !== undefined && value >= 0 ? [h("p", {}, "Hot copies that are in the tier for longer are deleted; their entries are read from the tier then.")] : [])),
    );
    dialog.enable(found.length > 0);
    dialog.confirm(found.length ? `Apply ${plural(found.length, "change")}` : "Apply");
  };
  update();
}

/** What differs from before: `value` undefined means that the topic does not say any more. */
function changes(inputs) {
  return inputs
    .filter(({ input, first }) => input.value !== first)
    .map(({ field, row, input }) => {
      if (!input.value) return { field, row, value: undefined };
      if (field.words) return { field, row, value: field.key === "streamingOffloadEnabled" ? input.value === "true" : input.value };
      return { field, row, value: field.parse(input.value) };
    });
}

/** Change what is stored in nothing but these. */
async function apply(topic, found) {
  const path = topicPath(topic, "offloadPolicies");
  const stored = (await get(path)) ?? {};
  for (const { field, value } of found) {
    for (const name of [field.key, field.short].filter(Boolean)) {
      delete stored[name];
      if (stored[EXTRA]) delete stored[EXTRA][name]; // where stock tools have to put it
    }
    if (value !== undefined) stored[field.key] = value;
  }
  if (stored[EXTRA] && !Object.keys(stored[EXTRA]).length) delete stored[EXTRA];
  if (Object.keys(stored).length) await call("POST", path, stored);
  else await call("DELETE", path);
}
