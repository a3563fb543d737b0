// Modal dialog with the effect of an action and a button that confirms it. If the broker refuses, its reason is shown.

import { h } from "./dom.js";

/**
 * Confirm an action.
 * @param title Title of the dialog.
 * @param body Nodes that describe the effect.
 * @param confirm Label of the button.
 * @param act Performs the action; the message of an error is shown.
 * @param cancelled Called if the dialog is cancelled.
 * @param informs Whether it has nothing to confirm, and so nothing to cancel.
 * @param refused Shows an error at its field, and returns whether it did; else it is shown above the buttons.
 * @returns functions that change the dialog: `{ confirm, enable, isOpen }`
 */
export function openDialog({ title, body, confirm, act, cancelled = () => {}, informs = false, refused = () => false }) {
  let done = false;
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const button = h("button", { class: "primary", type: "submit" }, confirm);
  const cancel = h("button", { class: "quiet", type: "button", onclick: () => dialog.close() }, "Cancel");
  const form = h(
    "form",
    {
      novalidate: true,
      onsubmit: async (event) => {
        event.preventDefault();
        if (button.disabled) return;
        button.disabled = true;
        problem.hidden = true;
        try {
          await act();
          done = true;
          dialog.close();
        } catch (error) {
          if (refused(error)) return;
          problem.textContent = error.message;
          problem.hidden = false;
        } finally {
          button.disabled = false;
        }
      },
    },
    h("h2", { id: "dialog-title" }, title),
    h("div", { class: "dialog-body" }, body),
    problem,
    h("div", { class: "dialog-buttons" }, !informs && cancel, button),
  );
  const dialog = h("dialog", { "aria-labelledby": "dialog-title" }, form);
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (!done) cancelled();
  });
  document.body.append(dialog);
  dialog.showModal();
  return {
    confirm: (words) => (button.textContent = words),
    enable: (possible) => (button.disabled = !possible),
    isOpen: () => dialog.isConnected,
  };
}

/** Radio buttons; `choices` are `[value, label, extra nodes]`. */
export function radios(name, choices, chosen, changed) {
  return h(
    "fieldset",
    { class: "choices" },
    choices.map(([value, label, extra]) =>
      h(
        "div",
        { class: "choice" },
        h(
          "label",
          {},
          h("input", { type: "radio", name, value, checked: value === chosen, onchange: () => changed(value) }),
          h("span", {}, label),
        ),
        extra,
      ),
    ),
  );
}
