// Dialog that skips messages of a subscription.

import { call, topicPath } from "./api.js";
import { openDialog, radios } from "./dialog.js";
import { h } from "./dom.js";
import { count, plural } from "./format.js";
import { toast } from "./notices.js";

/**
 * Acknowledge the first entries of a backlog, or all.
 * @param partitions Number of partitions; a number of entries can be skipped on a single topic only.
 */
export function skip(topic, cursor, partitions, onDone) {
  let way = partitions ? "all" : "some";
  const number = h("input", { type: "number", min: 1, step: 1, value: "1", "aria-label": "Number of entries", oninput: () => update() });
  const message = h("p", { class: "said", "aria-live": "polite" });
  const choices = [...(partitions ? [] : [["some", "The oldest entries of its backlog", number]]), ["all", "Its whole backlog"]];
  const path = topicPath(topic, "subscription", cursor.name);
  const dialog = openDialog({
    title: `Skip messages of ${cursor.name}`,
    body: [radios("skip", choices, way, (chosen) => ((way = chosen), update())), message],
    confirm: "Skip",
    act: async () => {
      await call("POST", way === "all" ? `${path}/skip_all` : `${path}/skip/${Number(number.value)}`);
      toast(`Messages of ${cursor.name} were skipped.`);
      onDone();
    },
  });
  const update = () => {
    const wanted = Number(number.value);
    const valid = way === "all" || (Number.isInteger(wanted) && wanted > 0);
    const backlog = cursor.backlog;
    const skipped = way === "all" ? backlog : backlog === undefined ? wanted : Math.min(wanted, backlog);
    message.textContent = !valid ? "Enter a number of entries." : backlog === 0 ? "Its backlog is empty: nothing is skipped." : `${skipped === undefined ? "All entries" : plural(skipped, "entry", "entries")} of its backlog${backlog === undefined ? "" : ` of ${count(backlog)}`} count as acknowledged, and are no longer delivered to it. Seek takes it back.`;
    dialog.enable(valid && backlog !== 0);
  };
  update();
}
