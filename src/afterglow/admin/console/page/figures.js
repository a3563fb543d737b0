// A row of statistics: name, value, and explanation.

import { h, say, set } from "./dom.js";
import { percent } from "./format.js";

/** Figures by name; `update` takes `{ name: [value, below, share, kind] }`. */
export class Figures {
  constructor(...names) {
    this.parts = new Map(
      names.map((name) => {
        const value = h("dd", { class: "figure-value" }, "–");
        const below = h("span", {});
        const meter = h("div", { class: "meter", hidden: true }, h("span", {}));
        return [name, { value, below, meter, node: h("div", { class: "figure" }, h("dt", {}, name), value, h("dd", { class: "figure-below" }, meter, below)) }];
      }),
    );
    this.node = h("dl", { class: "figures" }, [...this.parts.values()].map((part) => part.node));
  }

  update(values) {
    for (const [name, [value, below, share, kind]] of Object.entries(values)) {
      const part = this.parts.get(name);
      say(part.value, value);
      say(part.below, below ?? "");
      part.node.dataset.kind = kind ?? "";
      if (share !== undefined) fillMeter(part.meter, share);
    }
  }
}

/** Fill a bar to a share. */
export function fillMeter(meter, share) {
  meter.hidden = false;
  set(meter, { role: "img", "aria-label": `${percent(share)} in the tier` });
  meter.firstElementChild.style.width = `${share * 100}%`;
}
