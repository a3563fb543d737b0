// Entry point: shows the view of the address and refreshes it.

import { get, topicPath } from "./api.js";
import { h } from "./dom.js";
import { answered, broken, refused, silent } from "./notices.js";
import { OverviewView } from "./overview.js";
import { PartitionedView } from "./partitioned.js";
import { Poll } from "./poll.js";
import { askForTokens } from "./token.js";
import { TopicView } from "./topic.js";

const content = document.getElementById("content");
let poll = null;
let shows = 0;

/** The view of an address: `#/` for all topics, `#/topic/TENANT/NAMESPACE/NAME` for one. */
async function viewOf(address, ask) {
  const found = /^#\/topic\/([^/]+)\/([^/]+)\/([^/]+)$/.exec(address);
  if (!found) return new OverviewView(ask);
  const topic = found.slice(1).map(decodeURIComponent).join("/");
  const { partitions } = await get(topicPath(topic, "partitions"));
  return partitions ? new PartitionedView(topic, ask) : new TopicView(topic, ask);
}

function show() {
  shows += 1;
  const mine = shows;
  poll?.stop();
  let view = null;
  const ask = () => poll?.now();
  const work = async () => {
    // Choosing the view needs a call: the poll repeats it until it succeeds.
    if (!view) {
      const made = await viewOf(location.hash, ask);
      if (mine !== shows) return;
      view = made;
      document.title = `${view.title} · Afterglow`;
      content.replaceChildren(view.node);
      scrollTo(0, 0);
      poll.everyMs = view.constructor.everyMs;
    }
    await view.refresh();
  };
  const retry = () => poll.now();
  poll = new Poll(work, 2000, ({ error, againMs }) => {
    if (mine !== shows) return;
    if (!error) answered();
    else if (error.status === undefined) broken(error.message);
    else if (error.silent) silent(error.message, againMs, retry);
    else refused(error.message, retry);
    if (error && !view) content.replaceChildren(h("p", { class: "empty" }, error.message, " ", h("a", { href: "#/" }, "All topics")));
  });
}

addEventListener("error", (event) => broken(event.message));
addEventListener("unhandledrejection", (event) => broken(event.reason?.message ?? "an action failed"));
addEventListener("hashchange", () => {
  if (location.hash !== "#content") show();
});
askForTokens();
show();
