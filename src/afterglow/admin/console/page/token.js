// Prompts for a token if the broker requires authentication.

import { askWith, hasToken, removeToken } from "./api.js";
import { openDialog } from "./dialog.js";
import { h } from "./dom.js";

const signOut = document.getElementById("sign-out");

/** Prompt for a token when a call is answered with 401. */
export function askForTokens() {
  askWith(
    (reason) =>
      new Promise((resolve) => {
        const input = h("input", { type: "password", name: "token", autocomplete: "off", spellcheck: "false", required: true });
        openDialog({
          title: "The broker requires authentication",
          body: [
            h("p", { class: "said" }, reason),
            h("label", { class: "field" }, h("span", {}, "Token"), input),
            h("p", { class: "hint" }, "It is stored in this tab until the tab is closed, and sent to this broker only."),
          ],
          confirm: "Use this token",
          act: async () => {
            const token = input.value.trim();
            if (!token) throw new Error("Enter a token, as clients of this broker use it.");
            resolve(token);
            signOut.hidden = false;
          },
          cancelled: () => resolve(null),
        });
      }),
  );
  signOut.hidden = !hasToken();
  signOut.addEventListener("click", () => {
    removeToken();
    location.reload();
  });
}
