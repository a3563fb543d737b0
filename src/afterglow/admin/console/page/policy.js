// Effective policy of a topic with origins, and a dialog that changes the topic's own policies.

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

/** Fields that can be changed. */
export const FIELDS = [
  { key: "streamingOffloadEnabled", label: "Streaming", help: "Offload entries while the topic is written.", ...choice({ true: "on", false: "off" }) },
  { key: "maxOffloadSegmentSizeInBytes", short: "maxSizePerOffloadSegmentMbytes", label: "Segment size", help: "A segment is closed at this size.", ...SIZE },
  { key: "maxOffloadSegmentRolloverTimeInSeconds", short: "maxOffloadSegmentRolloverTimeMinutes", label: "Segment time", help: "Or at this age of its first entry.", ...SECONDS },
  { key: "managedLedgerOffloadThresholdInBytes", label: "Threshold by size", help: "Without streaming: closed ledgers beyond this size are offloaded.", ...SIZE, example: "10 GiB" },
  { key: "managedLedgerOffloadThresholdInSeconds", label: "Threshold by age", help: "Without streaming: ledgers are offloaded this long after their close.", ...SECONDS, example: "1 h" },
  { key: "managedLedgerOffloadDeletionLagInMillis", label: "Deletion lag", help: "The hot copy is deleted this long after the offload.", ...MILLIS },
  { key: "managedLedgerOffloadedReadPriority", label: "Read priority", help: "The copy that serves reads while both exist.", ...choice({ TIERED_STORAGE_FIRST: "tier first", BOOKKEEPER_FIRST: "hot log first" }) },
];

const ORIGINS = { topic: "this topic", namespace: "its namespace", broker: "the broker", default: "the default" };
const EXTRA = "managedLedgerExtraConfigurations";

/** The card of the effective policy. */
export class PolicyCard {
  constructor(topic, onChange) {
    this.topic = topic;
    this.onChange = onChange;
    this.rows = null;
    this.list = h("dl", { class: "policy" });
    this.button = h("button", { type: "button", class: "quiet", disabled: true, onclick: () => this.change() }, "Change…");
    this.note = h("p", { class: "hint", hidden: true });
    this.node = h("section", { class: "card" }, h("div", { class: "card-head" }, h("h2", {}, "Policy"), this.button), this.list, this.note);
  }

  /** @param base The partitioned topic of a partition, which has the policies; else null. */
  async refresh(base) {
    this.target = base ?? this.topic;
    const found = await get(topicPath(this.topic, "policy"));
    this.rows = new Map(found.map((row) => [row.name, row]));
    this.button.disabled = false;
    this.note.hidden = base === null;
    this.note.textContent = base === null ? "" : `It has the policies of ${base}, like all its partitions.`;
    this.list.replaceChildren(
      ...FIELDS.map((field) => {
        const row = this.rows.get(field.key);
        return h("div", {}, h("dt", { title: field.key }, field.label), h("dd", {}, h("span", { class: "main" }, field.shown(row.value)), h("span", { class: "origin", "data-origin": row.origin }, `from ${ORIGINS[row.origin] ?? row.origin}`)));
      }),
    );
  }

  change() {
    changePolicy(this.target, this.rows, this.onChange);
  }
}

function changePolicy(topic, rows, onChange) {
  const inputs = FIELDS.map((field) => {
    const row = rows.get(field.key);
    const here = row.origin === "topic";
    const inherited = here ? "inherited" : `${field.shown(row.value)}, from ${ORIGINS[row.origin] ?? row.origin}`;
    const problem = h("small", { class: "field-problem", id: `problem-${field.key}`, role: "alert", hidden: true });
    const described = { "aria-describedby": problem.id };
    const input = field.words
      ? h("select", { name: field.key, ...described, onchange: () => update() }, h("option", { value: "" }, inherited), Object.entries(field.words).map(([value, word]) => h("option", { value, selected: here && String(row.value) === value }, word)))
      : h("input", { type: "text", name: field.key, ...described, value: here ? field.shown(row.value) : "", placeholder: inherited, autocomplete: "off", spellcheck: "false", oninput: () => update() });
    return { field, row, here, input, problem, first: input.value };
  });
  const effect = h("div", { class: "said", "aria-live": "polite" });
  const dialog = openDialog({
    title: "Policy of this topic",
    body: [
      h("p", { class: "hint" }, `For ${topic} only. Empty fields are inherited from its namespace or the broker.`),
      h("div", { class: "fields" }, inputs.map(({ field, input, problem }) => h("div", { class: "field" }, h("label", {}, h("span", {}, field.label), input), problem, h("small", {}, field.help)))),
      effect,
    ],
    confirm: "Apply",
    // The broker names the setting, by either of its names: the reason belongs to that field.
    refused: (error) => {
      const found = inputs.find(({ field }) => [field.key, field.short].some((name) => name && error.message.includes(name)));
      if (found) complain(found, error.message);
      found?.input.focus();
      return Boolean(found);
    },
    act: async () => {
      await apply(topic, changes(inputs));
      toast("The policy was changed.");
      onChange();
    },
  });
  const complain = ({ input, problem }, text) => {
    problem.textContent = text;
    problem.hidden = !text;
    input.setAttribute("aria-invalid", String(Boolean(text)));
  };
  const update = () => {
    for (const each of inputs) complain(each, "");
    const wrong = inputs.filter(({ field, input, first }) => input.value !== first && input.value && !field.words && field.parse(input.value) === null);
    if (wrong.length) {
      for (const each of wrong) complain(each, `${each.input.value} is not a valid value; expected a value such as ${each.field.example}, or off.`);
      effect.replaceChildren(h("p", {}, "No changes yet: a value is not valid."));
      dialog.enable(false);
      return;
    }
    const found = changes(inputs);
    effect.replaceChildren(
      found.length
        ? h("ul", {}, found.map(({ field, row, value }) => h("li", {}, `${field.label}: ${field.shown(row.value)} → ${value === undefined ? "inherited" : field.shown(value)}`)))
        : h("p", {}, "No changes."),
      ...found.flatMap(({ field, value }) => (field.key === "streamingOffloadEnabled" && value !== undefined ? [h("p", {}, value ? "Everything that is not in the tier is offloaded in segments, from the next scan on." : "The open ledger is closed, and the last segment ends with it; afterwards whole ledgers are offloaded by the thresholds.")] : [])),
      ...found.flatMap(({ field, value }) => (field.key === "managedLedgerOffloadDeletionLagInMillis" && value !== undefined && value >= 0 ? [h("p", {}, "Hot copies that were offloaded longer ago are deleted; their entries are then read from the tier.")] : [])),
    );
    dialog.enable(found.length > 0);
    dialog.confirm(found.length ? `Apply ${plural(found.length, "change")}` : "Apply");
  };
  update();
}

/** The changed fields; `value` is undefined if the topic no longer sets the field. */
function changes(inputs) {
  return inputs
    .filter(({ input, first }) => input.value !== first)
    .map(({ field, row, input }) => {
      if (!input.value) return { field, row, value: undefined };
      if (field.words) return { field, row, value: field.key === "streamingOffloadEnabled" ? input.value === "true" : input.value };
      return { field, row, value: field.parse(input.value) };
    });
}

/** Store the changed fields; others stay. */
async function apply(topic, found) {
  const path = topicPath(topic, "offloadPolicies");
  const stored = (await get(path)) ?? {};
  for (const { field, value } of found) {
    for (const name of [field.key, field.short].filter(Boolean)) {
      delete stored[name];
      if (stored[EXTRA]) delete stored[EXTRA][name]; // where stock tools set it
    }
    if (value !== undefined) stored[field.key] = value;
  }
  if (stored[EXTRA] && !Object.keys(stored[EXTRA]).length) delete stored[EXTRA];
  if (Object.keys(stored).length) await call("POST", path, stored);
  else await call("DELETE", path);
}
