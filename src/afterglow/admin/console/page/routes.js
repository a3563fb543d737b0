// Addresses of views: `#/`, `#/health`, `#/topic/TENANT/NAMESPACE/NAME[/TAB][?QUERY]`.

const TOPIC = /^#\/topic\/([^/?]+)\/([^/?]+)\/([^/?]+)(?:\/(\w+))?(?:\?(.*))?$/;

/** The parts of an address: `{ page, topic, tab, query }`; an unknown address is that of all topics. */
export function routeOf(address) {
  const found = TOPIC.exec(address);
  if (!found) return { page: address === "#/health" ? "health" : "topics" };
  const topic = found.slice(1, 4).map(decodeURIComponent).join("/");
  return { page: "topic", topic, tab: found[4] ?? "log", query: new URLSearchParams(found[5] ?? "") };
}

/** The address of a topic's view. */
export function topicAddress(topic, tab = "log", query = {}) {
  const parts = topic.replace(/^persistent:\/\//, "").split("/").map(encodeURIComponent);
  const given = new URLSearchParams(Object.entries(query).filter(([, value]) => value));
  return `#/topic/${parts.join("/")}${tab === "log" ? "" : `/${tab}`}${given.size ? `?${given}` : ""}`;
}
