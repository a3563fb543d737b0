// Ticks of axes at round values.

import { count } from "./format.js";

const SECOND = 1000;
const STEPS_MS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400, 172_800, 604_800, 2_592_000].map((seconds) => seconds * SECOND);
const APART = 96;

function between(from, to, step, label, toX, width) {
  const found = [];
  for (let value = Math.ceil(from / step) * step; value <= to; value += step) {
    const x = toX(value);
    found.push({ value, label: label(value), anchor: x < 24 ? "start" : x > width - 30 ? "end" : "middle" });
  }
  return found;
}

/** The smallest of 1, 2, 5, 10, 20, … that is not below the value. */
export function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * ([1, 2, 5].find((step) => step * power >= value) ?? 10);
}

export function entryTicks(from, to, width) {
  const step = Math.max(roundUp(((to - from) / Math.max(width, 1)) * APART), 1);
  // one unit for the whole axis
  const [unit, word] = [[1e9, " G"], [1e6, " M"], [1e3, " k"]].find(([size]) => step >= size && to >= 10 * size) ?? [1, ""];
  return between(from, to, step, (value) => (value ? `${count(value / unit)}${word}` : "0"), (value) => ((value - from) / (to - from)) * width, width);
}

export function timeTicks(from, to, width) {
  const wanted = ((to - from) / Math.max(width, 1)) * APART;
  const step = STEPS_MS.find((found) => found >= wanted) ?? STEPS_MS.at(-1);
  const shift = new Date(to).getTimezoneOffset() * 60 * SECOND; // round in the browser's time zone
  const format = new Intl.DateTimeFormat("en-GB", step < 60 * SECOND ? { hour: "2-digit", minute: "2-digit", second: "2-digit" } : step < 86_400 * SECOND ? { hour: "2-digit", minute: "2-digit" } : { day: "numeric", month: "short" });
  const toX = (value) => ((value + shift - from) / (to - from)) * width;
  return between(from - shift, to - shift, step, (value) => format.format(value + shift), toX, width).map((tick) => ({ ...tick, value: tick.value + shift }));
}
