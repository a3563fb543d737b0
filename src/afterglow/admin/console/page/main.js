// Entry point: shows the view of the address and refreshes it.

import { get, topicPath } from "./api.js";
import { ClientsView } from "./clients.js";
import { h } from "./dom.js";
import { HealthView } from "./health.js";
import { MessagesView } from "./messages.js";
import { answered, broken, calm, refused, silent } from "./notices.js";
import { OverviewView } from "./overview.js";
import { PartitionedView } from "./partitioned.js";
import { Poll } from "./poll.js";
import { routeOf } from "./routes.js";
import { SchemaView } from "./schema.js";
import { askForTokens } from "./token.js";
import { TopicView } from "./topic.js";

const content = document.getElementById("content");
let poll = null;
let view = null;
let shows = 0;
let attached = null; // the cluster that the process is attached to, which alone can change topics

/** The view of an address. */
async function viewOf(route, ask) {
  attached ??= { to: (await get("afterglow/process")).attachedTo };
  const readOnly = Boolean(attached.to);
  if (route.page === "health") return new HealthView();
  if (route.page === "topics") return new OverviewView(ask, readOnly);
  const { topic, tab, query } = route;
  const { partitions } = await get(topicPath(topic, "partitions"));
  if (!readOnly && tab === "clients") return new ClientsView(topic, ask, partitions);
  if (!readOnly && tab === "schema") return new SchemaView(topic, partitions);
  if (partitions) return new PartitionedView(topic, ask, partitions, readOnly);
  return !readOnly && tab === "messages" ? new MessagesView(topic, query, ask) : new TopicView(topic, ask, readOnly);
}

function show() {
  const route = routeOf(location.hash);
  for (const link of document.querySelectorAll("#pages a")) link.ariaCurrent = route.page === "health" ? (link.hash === "#/health" ? "page" : null) : link.hash === "#/" ? "page" : null;
  if (view?.accepts?.(route)) {
    view.navigate(route.query);
    poll.now();
    return;
  }
  shows += 1;
  const mine = shows;
  poll?.stop();
  view = null;
  const ask = () => poll?.now();
  const work = async () => {
    // Choosing the view needs a call: the poll repeats it until it succeeds.
    if (!view) {
      const made = await viewOf(route, ask);
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
    else if (error.status === 404) missing(error.message);
    else if (error.status === undefined) broken(error.message);
    else if (error.silent) silent(error.message, againMs, retry);
    else refused(error.message, retry);
    if (error && !view && error.status !== 404) content.replaceChildren(h("h1", { class: "hidden" }, "Not available"), h("p", { class: "empty" }, "Nothing to show yet."));
  });

  /** The topic does not exist, or not any more: say it once, and do not ask again. */
  function missing(reason) {
    poll.stop();
    view = null;
    calm();
    document.title = "Not found · Afterglow";
    content.replaceChildren(h("h1", {}, "Not found"), h("p", { class: "empty" }, reason, " ", h("a", { href: "#/" }, "All topics")));
  }
}

addEventListener("error", (event) => broken(event.message));
addEventListener("unhandledrejection", (event) => broken(event.reason?.message ?? "an action failed"));
addEventListener("hashchange", () => {
  if (location.hash !== "#content") show();
});
askForTokens();
show();
