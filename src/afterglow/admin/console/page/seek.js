// Dialog that resets a subscription.

import { call, topicPath } from "./api.js";
import { openDialog, radios } from "./dialog.js";
import { h } from "./dom.js";
import { count, plural, time } from "./format.js";
import { toast } from "./notices.js";

const POSITION = /^(\d+):(\d+)$/;

/**
 * Reset a subscription.
 * @param topic The topic's name; of a partitioned topic all partitions are reset.
 * @param cursor The subscription.
 * @param log The topic's log; null for a partitioned topic, which has no positions.
 */
export function seek(topic, cursor, log, onReset) {
  let way = "time";
  const moment = h("input", { type: "datetime-local", step: 1, value: local(Date.now() - 15 * 60_000), "aria-label": "Time", oninput: () => update() });
  const at = h("input", { type: "text", placeholder: "LEDGER:ENTRY", "aria-label": "Position", inputmode: "numeric", autocomplete: "off", oninput: () => update() });
  const message = h("p", { class: "said", "aria-live": "polite" });
  const choices = [
    ["time", "The first message at or after", moment],
    ...(log ? [["position", "A position", at]] : []),
    ["earliest", "Earliest: the first retained message"],
    ["latest", "Latest: only new messages"],
  ];
  const path = topicPath(topic, "subscription", cursor.name);
  const acts = {
    time: () => call("POST", `${path}/resetcursor/${new Date(moment.value).getTime()}`),
    position: () => {
      const [, ledgerId, entryId] = POSITION.exec(at.value.trim());
      return call("POST", `${path}/resetcursor`, { ledgerId: Number(ledgerId), entryId: Number(entryId) });
    },
    earliest: () => (log ? call("POST", `${path}/resetcursor`, "earliest") : call("POST", `${path}/resetcursor/0`)),
    latest: () => (log ? call("POST", `${path}/resetcursor`, "latest") : call("POST", `${path}/skip_all`)),
  };
  const dialog = openDialog({
    title: `Seek ${cursor.name}`,
    body: [radios("way", choices, way, (chosen) => ((way = chosen), update())), message],
    confirm: "Seek",
    act: async () => {
      await acts[way]();
      toast(`${cursor.name} was reset.`);
      onReset();
    },
  });
  const update = () => {
    const [sentence, possible] = effect(way, moment.value, at.value.trim(), cursor, log);
    const consumers = cursor.consumers ? ` ${plural(cursor.consumers, "consumer")} will be disconnected, and ${cursor.consumers === 1 ? "reconnects" : "reconnect"} automatically.` : "";
    message.textContent = possible ? `${sentence}${consumers}` : sentence;
    dialog.enable(possible);
  };
  update();
}

/** The effect of the choice, and whether it is valid. */
function effect(way, moment, at, cursor, log) {
  const backlog = cursor.backlog === undefined ? "its backlog" : `its backlog of ${plural(cursor.backlog, "entry", "entries")}`;
  if (way === "earliest") return [`All retained messages${log ? `, ${plural(log.entries, "entry", "entries")},` : ""} are delivered again.`, true];
  if (way === "latest") return [`It skips ${backlog}: these messages are no longer delivered to it.`, true];
  if (way === "time") {
    const ms = new Date(moment).getTime();
    if (Number.isNaN(ms)) return ["Enter a time.", false];
    return [`Everything written from ${time(ms)} on is delivered, acknowledged messages too; earlier messages count as acknowledged.`, true];
  }
  const found = POSITION.exec(at);
  if (!found) return ["Enter a position as LEDGER:ENTRY, such as 3:120. The details of a block show its positions.", false];
  const row = log.ledgers.find((ledger) => ledger.ledger_id === Number(found[1]));
  const ahead = row ? `, ${count(Math.max(log.entries - row.first_index - Number(found[2]), 0))} entries to the end` : "";
  return [`Everything from ${at} on${ahead}, is delivered, acknowledged messages too.`, true];
}

/** The format of a time input: in the browser's time zone, without the zone. */
function local(ms) {
  const date = new Date(ms);
  return new Date(ms - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}
