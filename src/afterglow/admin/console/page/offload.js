// Dialogs that trigger an offload.

import { call, get, topicPath } from "./api.js";
import { openDialog, radios } from "./dialog.js";
import { h } from "./dom.js";
import { bytes, count, parseBytes, plural } from "./format.js";
import { firstKept } from "./log_model.js";
import { toast } from "./notices.js";

const POLL_MS = 1000;
const MAX_POLLS = 600;

/**
 * Offload a topic, except for the newest bytes that the user keeps.
 * @param current Returns the newest log.
 * @returns a function to be called when the log has changed, which describes the effect anew.
 */
export function offload(topic, current, streaming, onStart) {
  let keep = 0;
  const size = h("input", { type: "text", value: "100 MiB", "aria-label": "Size to keep", autocomplete: "off", oninput: () => update() });
  const effect = h("p", { class: "said", "aria-live": "polite" });
  let way = "all";
  let before = null;
  const body = streaming
    ? [effect]
    : [radios("stay", [["all", "All closed ledgers"], ["keep", "All but the newest", size]], way, (chosen) => ((way = chosen), update())), effect];
  const dialog = openDialog({
    title: "Offload now",
    body,
    confirm: "Offload",
    act: async () => {
      await call("PUT", topicPath(topic, "offload"), position(current().ledgers, before));
      watch(topic);
      onStart();
    },
  });
  const update = () => {
    const log = current();
    if (streaming) {
      before = Infinity;
      effect.textContent = log.lag_bytes
        ? `Everything written so far is offloaded: ${bytes(log.lag_bytes)} are not in the tier yet. The open segment is closed at once, whatever its size and age; a new one starts with the next entry. Clients are not affected.`
        : "Everything is in the tier already; nothing is offloaded.";
      return;
    }
    keep = way === "all" ? 0 : parseBytes(size.value);
    if (keep === null || keep < 0) {
      effect.textContent = "Enter a size, such as 100 MiB or 2 GiB.";
      dialog.enable(false);
      return;
    }
    before = firstKept(log.ledgers, keep);
    const going = log.ledgers.filter((row) => before !== null && row.ledger_id < before && row.entries && !["offloaded", "freed", "waiting-for-lag", "to-be-freed"].includes(row.state));
    const stays = log.ledgers.filter((row) => before !== null && row.ledger_id >= before);
    effect.textContent = going.length
      ? `${plural(going.length, "ledger")}, ${bytes(going.reduce((sum, row) => sum + row.bytes, 0))}, from ${going[0].ledger_id} to ${going.at(-1).ledger_id}, of the ${bytes(log.lag_bytes)} that are not in the tier, will be offloaded. ${stays.length ? `${plural(stays.length, "ledger")} from ${stays[0].ledger_id} on ${stays.length === 1 ? "is" : "are"} kept.` : ""} Clients are not affected.`
      : "Nothing to offload: all closed ledgers are in the tier, or are kept.";
    dialog.enable(going.length > 0);
  };
  update();
  return () => dialog.isOpen() && update();
}

/** Offload every partition of a topic. */
export function offloadPartitions(topic, partitions, onStart) {
  openDialog({
    title: "Offload all partitions now",
    body: [h("p", { class: "said" }, `All closed ledgers of ${plural(partitions.length, "partition")} are offloaded, and of streaming partitions everything written so far: ${bytes(partitions.reduce((sum, row) => sum + row.lag_bytes, 0))} are not in the tier yet. Clients are not affected.`)],
    confirm: `Offload ${count(partitions.length)} partitions`,
    act: async () => {
      const problems = [];
      for (const row of partitions) {
        try {
          const log = await get(topicPath(row.topic, "log"));
          const before = row.offload === "streaming" ? Infinity : firstKept(log.ledgers, 0);
          if (before !== null) await call("PUT", topicPath(row.topic, "offload"), position(log.ledgers, before));
        } catch (error) {
          problems.push(`${row.topic}: ${error.message}`);
        }
      }
      onStart();
      if (problems.length) throw new Error(problems.join("; "));
      toast("The offload of all partitions has started.");
    },
  });
}

/** The position up to which to offload, given the first ledger to keep. */
function position(ledgers, before) {
  return before > (ledgers.at(-1)?.ledger_id ?? -1) ? "latest" : { ledgerId: before, entryId: 0, partitionIndex: -1 };
}

/** Show the status until the offload has ended. */
async function watch(topic) {
  const change = toast("Offloading…", "running");
  for (let poll = 0; poll < MAX_POLLS; poll += 1) {
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    try {
      const { status, lastError } = await get(topicPath(topic, "offload"));
      if (status === "RUNNING") change("Offloading…", "running");
      else return status === "ERROR" ? change(`Offload failed: ${lastError}`, "problem") : change("Offload has finished: all requested data is in the tier.");
    } catch {
      // the banner reports that the broker does not answer
    }
  }
}
