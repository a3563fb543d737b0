// What the page has to say about itself: whether it is live, one banner when it is not, and what became of actions.

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
  live.title = "The page follows the broker while it is in front.";
  if (banner.dataset.kind === "silent") banner.hidden = true;
}

/** The broker does not answer: one banner, and what is on the page stays. */
export function silent(reason, againMs, retry) {
  live.dataset.state = "silent";
  say(live, "Not live");
  const since = lastMs === null ? "" : ` What you see is of ${time(lastMs)}.`;
  show("silent", `The broker does not answer: ${reason}.${since} Trying again in ${Math.round(againMs / 1000)} s.`, retry);
}

/** The broker has refused to show something. */
export function refused(reason, retry) {
  live.dataset.state = "silent";
  say(live, "Not live");
  show("silent", reason, retry);
}

/** The page itself is at fault. */
export function broken(message) {
  show("broken", `The page failed: ${message}. Load it again; what the broker does is not affected.`, () => location.reload());
}

function show(kind, text, retry) {
  banner.dataset.kind = kind;
  banner.replaceChildren(h("p", {}, text), h("button", { type: "button", onclick: retry }, "Try now"));
  banner.hidden = false;
}

/** A line that says what became of an action; it can be changed, and goes by itself. */
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
