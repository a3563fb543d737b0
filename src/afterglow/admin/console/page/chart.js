// A small line chart of the last minutes.

import { h, s, say, set } from "./dom.js";
import { KEPT_MS } from "./history.js";
import { time } from "./format.js";
import { roundUp } from "./ticks.js";

const HEIGHT = 96;
const TOP = 8;
const FOOT = 18;
const SHORTEST_MS = 60_000; // of the time axis, also when there are fewer samples

export class Chart {
  /**
   * @param title Title of the chart.
   * @param format From a value to text.
   * @param series `[key of the samples, label]`; the first line is solid, the second dashed.
   */
  constructor(title, format, series, least = 1) {
    this.format = format;
    this.series = series;
    this.least = least;
    this.samples = [];
    this.values = series.map(() => h("span", { class: "value" }, "–"));
    this.lines = series.map((_, index) => s("path", { class: `line line-${index}` }));
    this.area = s("path", { class: "area" });
    this.grid = [0, 1].map(() => s("line", { class: "grid" }));
    this.top = s("text", { class: "scale", x: 0, y: TOP + 10 });
    this.left = s("text", { class: "scale", x: 0, y: HEIGHT - 4 });
    this.right = s("text", { class: "scale", y: HEIGHT - 4, "text-anchor": "end" }, "now");
    this.hair = s("line", { class: "hair", y1: TOP, y2: HEIGHT - FOOT });
    this.svg = s("svg", { class: "chart-plot", height: HEIGHT, role: "img", "aria-label": title }, this.grid, this.area, this.lines, this.hair, this.top, this.left, this.right);
    this.node = h(
      "figure",
      { class: "chart" },
      h("figcaption", {}, h("p", { class: "chart-title" }, title), series.map(([, label], index) => h("span", { class: "chart-value" }, h("span", { class: `key key-${index}` }), label && `${label} `, this.values[index]))),
      this.svg,
    );
    this.svg.addEventListener("pointermove", (event) => this.read(event.offsetX));
    this.svg.addEventListener("pointerleave", () => this.read(null));
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }

  update(samples) {
    this.samples = samples;
    this.draw();
  }

  draw() {
    const { samples } = this;
    const width = this.svg.clientWidth || 280;
    set(this.svg, { viewBox: `0 0 ${width} ${HEIGHT}` });
    const end = samples.at(-1)?.atMs ?? Date.now();
    const length = Math.min(Math.max(end - (samples[0]?.atMs ?? end), SHORTEST_MS), KEPT_MS);
    this.toX = (atMs) => width - ((end - atMs) / length) * width;
    say(this.left, `${Math.round(length / SHORTEST_MS)} min ago`);
    const values = samples.flatMap((sample) => this.series.map(([key]) => sample[key] ?? 0));
    const high = this.format.roundUp ? this.format.roundUp(Math.max(...values, this.least)) : roundUp(Math.max(...values, this.least));
    const floor = HEIGHT - FOOT;
    const toY = (value) => floor - (value / high) * (floor - TOP);
    this.grid.forEach((line, index) => set(line, { x1: 0, x2: width, y1: index ? floor : TOP, y2: index ? floor : TOP }));
    say(this.top, this.format(high));
    set(this.right, { x: width });
    this.series.forEach(([key], index) => {
      const points = samples.filter((sample) => sample[key] !== null && sample[key] !== undefined).map((sample) => [this.toX(sample.atMs), toY(sample[key])]);
      const path = points.map(([x, y], at) => `${at ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
      set(this.lines[index], { d: path });
      if (!index) set(this.area, { d: points.length > 1 ? `${path}L${points.at(-1)[0].toFixed(1)} ${floor}L${points[0][0].toFixed(1)} ${floor}Z` : "" });
    });
    this.read(this.at ?? null);
  }

  /** Show the values at an x coordinate of the plot, or the newest ones. */
  read(x) {
    this.at = x;
    const { samples } = this;
    const near = x === null ? samples.at(-1) : samples.reduce((best, sample) => (best && Math.abs(this.toX(best.atMs) - x) <= Math.abs(this.toX(sample.atMs) - x) ? best : sample), null);
    this.hair.classList.toggle("shown", x !== null && Boolean(near));
    if (!near) return;
    if (x !== null) set(this.hair, { x1: this.toX(near.atMs), x2: this.toX(near.atMs) });
    this.series.forEach(([key], index) => say(this.values[index], near[key] === null || near[key] === undefined ? "–" : this.format(near[key])));
    say(this.right, x === null ? "now" : time(near.atMs));
  }
}

/** A format of bytes, whose scale grows in powers of two. */
export function inBytes(format) {
  const found = (value) => format(value);
  found.roundUp = (value) => 2 ** Math.ceil(Math.log2(value));
  return found;
}
