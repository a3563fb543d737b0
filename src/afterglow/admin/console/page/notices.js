// Status of the page: whether it is live, a banner if it is not, and results of actions.

import { h, say } from "./dom.js";
import { time } from "./format.js";

const live = document.getElementById("live");
const banner = document.getElementById("banner");
const toasts = document.getElementById("toasts");
const STAY_MS = 8000;

let lastMs = null;

/** The broker has answered. */
export function answered() {
  lastMs = Date.now();
  live.dataset.state = "live";
  say(live, "Live");
  live.title = "The page is refreshed while its tab is visible.";
  if (banner.dataset.kind === "silent") banner.hidden = true;
}

/** The page is not live, for a reason that it shows itself. */
export function calm() {
  live.dataset.state = "silent";
  say(live, "");
  if (banner.dataset.kind === "silent") banner.hidden = true;
}

/** The broker does not answer: show a banner, and keep the last data. */
export function silent(reason, againMs, retry) {
  live.dataset.state = "silent";
  say(live, "Not live");
  const since = lastMs === null ? "" : ` The data is from ${time(lastMs)}.`;
  show("silent", `The broker does not answer: ${reason}.${since} Next attempt in ${Math.round(againMs / 1000)} s.`, retry);
}

/** The broker refused a call. */
export function refused(reason, retry) {
  live.dataset.state = "silent";
  say(live, "Not live");
  show("silent", reason, retry);
}

/** The page itself failed. */
export function broken(message) {
  show("broken", `The page failed: ${message}. Reload it; the broker is not affected.`, () => location.reload());
}

function show(kind, text, retry) {
  banner.dataset.kind = kind;
  banner.replaceChildren(h("p", {}, text), h("button", { type: "button", onclick: retry }, "Try now"));
  banner.hidden = false;
}

/** Show the result of an action; the returned function changes it. It disappears after a while. */
export function toast(text, kind = "done") {
  const line = h("p", { class: "toast", "data-kind": kind }, text);
  toasts.append(line);
  let timer = setTimeout(() => line.remove(), STAY_MS);
  return (changed, changedKind = kind) => {
    clearTimeout(timer);
    if (!line.isConnected) toasts.append(line);
    line.dataset.kind = changedKind;
    say(line, changed);
    timer = setTimeout(() => line.remove(), STAY_MS);
  };
}
