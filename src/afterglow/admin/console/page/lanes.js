// Drawing of a log: hot ledgers above, the tier below, subscriptions across. Elements of blocks are reused.

import { keyed, s, say, set } from "./dom.js";
import { compact, plural, position } from "./format.js";
import { fitted, STATUSES } from "./log_model.js";
import { entryTicks, timeTicks } from "./ticks.js";

const LANE = 44;
const LABEL = 20;
const AXIS = 30;
const FLAG = 18;
const MAX_FLAG_ROWS = 3;
const NAME = 64; // width of the name of a lane
const LANES = [
  ["hot", "Hot log"],
  ["tier", "Tier"],
];

export class Lanes {
  /** @param onSelect Called with the blocks that are pointed at (null: none), and whether they stay selected. */
  constructor(onSelect) {
    this.onSelect = onSelect;
    this.axis = "entries";
    this.part = 1;
    this.focusKey = null;
    this.known = { hot: new Map(), tier: new Map(), flags: new Map(), ticks: new Map() };
    this.lanes = Object.fromEntries(
      LANES.map(([lane, name]) => [lane, s("g", { class: `lane lane-${lane}`, role: "listbox", "aria-label": name, "aria-orientation": "horizontal" })]),
    );
    this.grounds = Object.fromEntries(LANES.map(([lane]) => [lane, s("rect", { class: "ground", rx: 4 })]));
    this.names = Object.fromEntries(LANES.map(([lane, name]) => [lane, s("text", { class: "lane-name", y: -LANE }, name)]));
    this.flags = s("g", { class: "flags" });
    this.ticks = s("g", { class: "ticks", "aria-hidden": "true" });
    this.node = s(
      "svg",
      { class: "lanes", role: "group", "aria-label": "The log. Arrow keys move between blocks." },
      patterns(),
      this.ticks,
      LANES.map(([lane]) => [this.names[lane], this.grounds[lane], this.lanes[lane]]),
      this.flags,
    );
    this.node.addEventListener("keydown", (event) => this.move(event));
    this.node.addEventListener("pointerleave", () => this.onSelect(null, false));
    new ResizeObserver(() => this.model && this.draw(this.model)).observe(this.node);
  }

  draw(model) {
    this.model = model;
    const width = this.node.clientWidth || 600;
    const { low, high } = model[this.axis];
    const from = high - (high - low) * this.part;
    const toX = (value) => ((value - from) / (high - from)) * width;
    const [begin, end] = this.axis === "time" ? ["t0", "t1"] : ["x0", "x1"];
    const seen = (block) => block[end] >= from;
    const scale = (block) => [Math.max(toX(block[begin]), 0), Math.min(toX(block[end]), width)];

    const flags = this.placeFlags(model.cursors.filter((cursor) => cursor[begin] >= from), (cursor) => toX(cursor[begin]), width);
    let top = flags.rows * FLAG;
    const tops = {};
    this.groups = {};
    for (const [lane] of LANES) {
      set(this.names[lane], { x: 0, y: top + 14 });
      top += LABEL;
      tops[lane] = top;
      set(this.grounds[lane], { x: 0, y: top, width, height: LANE });
      this.groups[lane] = fitted(model[lane].filter(seen), scale);
      this.drawLane(lane, this.groups[lane], top);
      top += LANE + 6;
    }
    this.drawFlags(flags.items, tops, top - 6);
    this.drawTicks(this.axis === "time" ? timeTicks(from, high, width) : entryTicks(from, high, width), toX, tops, top);
    set(this.node, { height: top + AXIS, viewBox: `0 0 ${width} ${top + AXIS}` });
  }

  drawLane(lane, groups, top) {
    const focused = groups.find((group) => group.blocks.some((block) => block.key === this.focusKey)) ?? groups.at(-1);
    keyed(
      this.lanes[lane],
      this.known[lane],
      groups.map((group) => [group.key, group]),
      () => {
        const node = s("g", { role: "option", "aria-selected": "false" }, s("rect", { class: "base", rx: 3 }), s("rect", { class: "filled", rx: 3 }), s("rect", { class: "mark", rx: 3 }), s("text", { class: "name", "aria-hidden": "true" }));
        const select = (stay) => () => this.onSelect(node.group, stay);
        node.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && select(false)());
        node.addEventListener("click", () => {
          this.focusKey = node.group.blocks[0].key;
          select(true)();
        });
        node.addEventListener("focus", () => {
          this.focusKey = node.group.blocks[0].key;
          select(true)();
        });
        return node;
      },
      (node, group) => {
        node.group = group;
        const [base, filled, mark, name] = node.children;
        const width = Math.max(group.right - group.left - 1, 1.5);
        const box = { x: 0, y: top, width: width.toFixed(2), height: LANE };
        node.style.transform = `translateX(${group.left.toFixed(2)}px)`;
        set(node, { class: `block s-${group.status}`, tabindex: group === focused ? 0 : -1, "aria-label": spoken(group) });
        set(base, box);
        set(mark, box);
        const part = group.blocks.length === 1 ? (group.blocks[0].filled ?? 0) : 0;
        set(filled, { ...box, width: (group.status === "Offloaded" ? 0 : width * part).toFixed(2) });
        const text = group.blocks.length > 1 ? `${group.blocks.length}` : group.blocks[0].label;
        set(name, { x: 7, y: top + LANE / 2 + 4 });
        say(name, width > text.length * 7 + 12 ? text : "");
      },
    );
  }

  placeFlags(cursors, toX, width) {
    const items = [];
    for (const cursor of cursors.toSorted((one, other) => toX(one) - toX(other))) {
      const x = Math.min(Math.max(toX(cursor), 1), width - 1);
      const near = items.find((item) => Math.abs(item.x - x) < 5);
      if (near) near.cursors.push(cursor);
      else items.push({ key: cursor.key, x, cursors: [cursor] });
    }
    const ends = [];
    for (const item of items) {
      item.text = item.cursors.length > 1 ? `${item.cursors[0].label} +${item.cursors.length - 1}` : item.cursors[0].label;
      if (item.text.length > 26) item.text = `${item.text.slice(0, 25)}…`;
      const length = item.text.length * 7 + 14;
      item.left = item.x + length > width; // no space on its right
      const start = item.left ? item.x - length : item.x;
      let row = ends.findIndex((until) => until <= start);
      if (row < 0) row = Math.min(ends.length, MAX_FLAG_ROWS - 1);
      ends[row] = item.left ? item.x + 4 : item.x + length;
      item.row = row;
    }
    return { items, rows: Math.max(ends.length, items.length ? 1 : 0) };
  }

  drawFlags(items, tops, bottom) {
    keyed(
      this.flags,
      this.known.flags,
      items.map((item) => [item.key, item]),
      () => {
        const node = s("g", { class: "flag", role: "button", tabindex: 0 }, s("path", { class: "mark" }), s("path"), s("text"));
        const select = (stay) => () => this.onSelect({ lane: "cursor", key: node.item.key, blocks: node.item.cursors }, stay);
        node.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && select(false)());
        node.addEventListener("click", select(true));
        node.addEventListener("focus", select(true));
        return node;
      },
      (node, item) => {
        node.item = item;
        const [line, head, text] = node.children;
        const y = item.row * FLAG;
        set(node, { "aria-label": `Subscription ${item.text}` });
        set(line, { d: mark(item.x, y + 4, tops, bottom) });
        set(head, { d: item.x < NAME ? "" : `M${item.x - 5} ${tops.hot - 8}h10l-5 7z` });
        set(text, { x: item.left ? item.x - 5 : item.x + 5, y: y + 13, "text-anchor": item.left ? "end" : "start" });
        say(text, item.text);
      },
    );
  }

  drawTicks(ticks, toX, tops, bottom) {
    keyed(
      this.ticks,
      this.known.ticks,
      ticks.map((tick) => [tick.label, tick]),
      () => s("g", {}, s("line"), s("text")),
      (node, tick) => {
        const x = toX(tick.value).toFixed(1);
        const [line, text] = node.children;
        set(line, { x1: x, x2: x, y1: tops.hot, y2: bottom + 4 });
        set(text, { x, y: bottom + 18, "text-anchor": tick.anchor });
        say(text, tick.label);
      },
    );
  }

  /** Arrow keys move along a lane and between lanes. */
  move(event) {
    const at = event.target.closest?.("[role=option]")?.group;
    if (!at) return;
    const lane = this.groups[at.lane];
    const index = lane.indexOf(at);
    const other = this.groups[at.lane === "hot" ? "tier" : "hot"];
    const middle = (at.left + at.right) / 2;
    const nearest = () => other.toSorted((one, two) => distance(one, middle) - distance(two, middle))[0];
    const wanted = {
      ArrowLeft: () => lane[index - 1],
      ArrowRight: () => lane[index + 1],
      Home: () => lane[0],
      End: () => lane.at(-1),
      ArrowUp: nearest,
      ArrowDown: nearest,
    }[event.key]?.();
    if (!wanted) return;
    event.preventDefault();
    this.focusKey = wanted.key;
    for (const [key, node] of this.known[wanted.lane]) set(node, { tabindex: key === wanted.key ? 0 : -1 });
    this.known[wanted.lane].get(wanted.key).focus();
  }

  /** The group that contains the block with a key. */
  find(key) {
    const cursor = this.model.cursors.find((found) => found.key === key);
    if (cursor) return { lane: "cursor", key, blocks: [cursor] };
    return [...this.groups.hot, ...this.groups.tier].find((group) => group.blocks.some((block) => block.key === key)) ?? null;
  }

  /** Mark the blocks whose details are shown. */
  select(shown) {
    for (const lane of ["hot", "tier"]) {
      for (const node of this.known[lane].values()) set(node, { "aria-selected": node.group === shown });
    }
  }
}

/** The line of a subscription through both lanes, interrupted at the names of the lanes. */
function mark(x, top, tops, bottom) {
  const parts = x < NAME ? [[top, tops.hot - LABEL], [tops.hot, tops.hot + LANE], [tops.tier, bottom]] : [[top, bottom]];
  return parts.filter(([from, to]) => from < to).map(([from, to]) => `M${x} ${from}V${to}`).join("");
}

const distance = (group, x) => Math.max(group.left - x, x - group.right, 0);

function spoken(group) {
  const [first] = group.blocks;
  if (group.blocks.length > 1) return `${plural(group.blocks.length, first.lane === "hot" ? "ledger" : "object")}, ${STATUSES[group.status]}`;
  const { row } = first;
  if (first.lane === "hot") return `Ledger ${row.ledger_id}, ${STATUSES[group.status]}, ${plural(row.entries, "entry", "entries")}`;
  const what = row.kind === "segment" ? "Segment" : "Ledger object";
  return `${what} ${first.label}, ${STATUSES[group.status]}, from ${position(row.begin)} to ${position(row.end)}, ${compact(row.entries)} entries`;
}

/** Patterns that distinguish statuses without colour. */
function patterns() {
  const tile = (id, size, ...marks) => s("pattern", { id, width: size, height: size, patternUnits: "userSpaceOnUse" }, marks);
  return s(
    "defs",
    {},
    tile("m-Assigned", 8, s("path", { class: "m m-Assigned", d: "M-2 2l4-4M0 8l8-8M6 10l4-4" })),
    tile("m-Failed", 8, s("path", { class: "m m-Failed", d: "M0 0l8 8M8 0l-8 8" })),
    tile("m-gone", 6, s("circle", { class: "m m-gone", cx: 3, cy: 3, r: 0.9 })),
  );
}
