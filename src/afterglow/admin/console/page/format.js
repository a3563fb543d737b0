// Formatting and parsing of numbers, sizes and times.

const whole = new Intl.NumberFormat("en");
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const STEPS = { "": 1, b: 1, k: 1024, m: 1024 ** 2, g: 1024 ** 3, t: 1024 ** 4 };
const SPANS = { ms: 1, "": 1000, s: 1000, sec: 1000, m: 60_000, min: 60_000, h: 3_600_000, d: 86_400_000, w: 604_800_000 };

export const count = (number) => whole.format(number);

/** 12 · 3.4 k · 120 M */
export function compact(number) {
  for (const [step, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (number >= step * 10 || (step > 1e3 && number >= step)) return `${figures(number / step)} ${unit}`;
  }
  return Number.isInteger(number) ? count(number) : figures(number);
}

export function bytes(number) {
  let unit = 0;
  let left = number;
  while (left >= 1024 && unit < UNITS.length - 1) {
    left /= 1024;
    unit += 1;
  }
  return `${unit ? figures(left) : Math.round(left)} ${UNITS[unit]}`;
}

export const perSecond = (number) => `${number && number < 10 ? figures(number) : compact(Math.round(number))}/s`;
export const bytesPerSecond = (number) => `${bytes(number)}/s`;

/** A duration: 0.4 s · 12 s · 3 min · 2 h 5 min · 4 d */
export function span(seconds) {
  if (seconds === null || seconds === undefined) return "unknown";
  if (seconds < 10) return `${seconds.toFixed(1).replace(/\.0$/, "")} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172_800) {
    const minutes = Math.round(seconds / 60);
    return minutes % 60 && minutes < 1440 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${Math.round(minutes / 60)} h`;
  }
  return `${Math.round(seconds / 86_400)} d`;
}

const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric" });

/** A time in the browser's time zone; with the day unless it is today. */
export function time(ms) {
  const date = new Date(ms ?? NaN);
  if (!ms || Number.isNaN(date.getTime())) return "unknown"; // producers send any number
  const today = date.toDateString() === new Date().toDateString();
  return today ? clock.format(date) : `${day.format(date)}, ${clock.format(date)}`;
}

export const share = (part, all) => (all ? Math.min(part / all, 1) : 0);
export const percent = (ratio) => `${ratio > 0 && ratio < 0.01 ? "<1" : Math.floor(ratio * 100)} %`;
export const entries = (number) => `${compact(number)} ${number === 1 ? "entry" : "entries"}`;
export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;
export const position = (at) => (at ? `${at.ledger_id}:${at.entry_id}` : "open");

/** How far a subscription has acknowledged: entry -1 is the position before the first one of a ledger. */
export function acknowledged(position) {
  if (position === undefined) return "–";
  const [ledger, entry] = position.split(":").map(Number);
  if (ledger < 0) return "nothing yet";
  return entry < 0 ? `all before ${ledger}:0` : position;
}

/** Bytes of `64M`, `1.5 GiB`, `4096`; null if it is not a size. */
export function parseBytes(text) {
  const found = /^(-?\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?$/i.exec(text.trim());
  return found ? Math.round(Number(found[1]) * STEPS[found[2].toLowerCase()]) : null;
}

/** Milliseconds of `90s`, `10m`, `4h`, `2d`, or of bare seconds; null if it is not a duration. */
export function parseSpan(text) {
  const found = /^(-?\d+(?:\.\d+)?)\s*(ms|sec|min|s|m|h|d|w|)$/i.exec(text.trim());
  return found ? Math.round(Number(found[1]) * SPANS[found[2].toLowerCase()]) : null;
}

/** The parts of a topic's full name. */
export function parseTopic(name) {
  const parts = name.replace(/^persistent:\/\//, "").split("/");
  return { namespace: parts.slice(0, -1).join("/"), local: parts.at(-1), reachable: parts.length === 3 };
}

function figures(number) {
  if (number >= 100) return String(Math.round(number));
  return number.toFixed(number >= 10 ? 1 : 2).replace(/\.?0+$/, "");
}
