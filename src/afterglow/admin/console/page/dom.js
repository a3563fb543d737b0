// DOM elements without markup: values become text, never HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** An HTML element; properties that start with `on` are listeners, all others attributes. */
export function h(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** An SVG element. */
export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Set the attributes that differ. */
export function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    const text = String(value);
    if (node.getAttribute(name) !== text) node.setAttribute(name, text);
  }
}

/** Set the text of an element if it differs, so that selections and screen readers are not disturbed. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Give a parent one child per key, in this order; existing children are reused, so that focus and hover stay. */
export function keyed(parent, known, items, make, update) {
  const wanted = new Set(items.map(([key]) => key));
  for (const [key, node] of known) {
    if (!wanted.has(key)) {
      node.remove();
      known.delete(key);
    }
  }
  let before = parent.firstElementChild;
  for (const [key, item] of items) {
    let node = known.get(key);
    if (!node) {
      node = make(item);
      known.set(key, node);
    }
    update(node, item);
    if (node === before) before = before.nextElementSibling;
    else parent.insertBefore(node, before);
  }
}
