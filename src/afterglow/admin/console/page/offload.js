// Offloading by hand.

import { call, get, topicPath } from "./api.js";
import { openDialog, radios } from "./dialog.js";
import { h } from "./dom.js";
import { bytes, count, parseBytes, plural } from "./format.js";
import { firstKept } from "./log_model.js";
import { toast } from "./notices.js";

const LOOK_MS = 1000;
const LOOKS = 600;

/** Ask how much is to stay, and offload the rest. */
export function offload(topic, log, streaming, begun) {
  let keep = 0;
  const size = h("input", { type: "text", value: "100 MiB", "aria-label": "Size that stays", autocomplete: "off", oninput: () => update() });
  const told = h("p", { class: "said", "aria-live": "polite" });
  let way = "all";
  let before = null;
  const body = streaming
    ? [told]
    : [radios("stay", [["all", "All closed ledgers"], ["keep", "All but the newest", size]], way, (chosen) => ((way = chosen), update())), told];
  const dialog = openDialog({
    title: "Offload now",
    body,
    confirm: "Offload",
    act: async () => {
      await call("PUT", topicPath(topic, "offload"), position(log.ledgers, before));
      watch(topic);
      begun();
    },
  });
  const update = () => {
    if (streaming) {
      before = Infinity;
      told.textContent = log.lag_bytes
        ? `Everything written up to now goes to the tier: ${bytes(log.lag_bytes)} are not there yet. The open segment is closed at once, whatever its size and age; a new one begins with the next entry. Clients notice nothing.`
        : "Everything is in the tier already; nothing will happen.";
      return;
    }
    keep = way === "all" ? 0 : parseBytes(size.value);
    if (keep === null || keep < 0) {
      told.textContent = "Give a size, such as 100 MiB or 2 GiB.";
      dialog.enable(false);
      return;
    }
    before = firstKept(log.ledgers, keep);
    const going = log.ledgers.filter((row) => before !== null && row.ledger_id < before && row.entries && !["offloaded", "freed", "waiting-for-lag", "to-be-freed"].includes(row.state));
    const stays = log.ledgers.filter((row) => before !== null && row.ledger_id >= before);
    told.textContent = going.length
      ? `${plural(going.length, "ledger")}, ${bytes(going.reduce((sum, row) => sum + row.bytes, 0))}, from ${going[0].ledger_id} to ${going.at(-1).ledger_id}, will be copied to the tier. ${stays.length ? `${plural(stays.length, "ledger")} from ${stays[0].ledger_id} on ${stays.length === 1 ? "stays" : "stay"} out of it.` : ""} Clients notice nothing.`
      : "Nothing would go: what is closed is in the tier, or is to stay.";
    dialog.enable(going.length > 0);
  };
  update();
}

/** Offload every partition of a topic, as far as it is not there. */
export function offloadPartitions(topic, partitions, begun) {
  openDialog({
    title: "Offload all partitions now",
    body: [h("p", { class: "said" }, `Of ${plural(partitions.length, "partition")} everything that is closed, and of those that stream everything written up to now, goes to the tier: ${bytes(partitions.reduce((sum, row) => sum + row.lag_bytes, 0))} are not there yet. Clients notice nothing.`)],
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
      begun();
      if (problems.length) throw new Error(problems.join("; "));
      toast("Offload of all partitions has begun.");
    },
  });
}

/** The position before which everything is to be offloaded, given the first ledger that stays. */
function position(ledgers, before) {
  return before > (ledgers.at(-1)?.ledger_id ?? -1) ? "latest" : { ledgerId: before, entryId: 0, partitionIndex: -1 };
}

/** Say how it goes until it has ended. */
async function watch(topic) {
  const change = toast("Offloading…", "running");
  for (let look = 0; look < LOOKS; look += 1) {
    await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    try {
      const { status, lastError } = await get(topicPath(topic, "offload"));
      if (status === "RUNNING") change("Offloading…", "running");
      else return status === "ERROR" ? change(`Offload failed: ${lastError}`, "problem") : change("Offload has ended: all that was asked for is in the tier.");
    } catch {
      // the banner says that nobody answers
    }
  }
}
