// Asks for a token where the broker wants one.

import { askWith, forgetToken, hasToken } from "./api.js";
import { openDialog } from "./dialog.js";
import { h } from "./dom.js";

const signOut = document.getElementById("sign-out");

/** Have calls that are answered 401 ask for a token. */
export function askForTokens() {
  askWith(
    (reason) =>
      new Promise((resolve) => {
        const input = h("input", { type: "password", name: "token", autocomplete: "off", spellcheck: "false", required: true });
        openDialog({
          title: "The broker asks who you are",
          body: [
            h("p", { class: "said" }, reason),
            h("label", { class: "field" }, h("span", {}, "Token"), input),
            h("p", { class: "hint" }, "It is kept in this tab until the tab is closed, and sent to this broker only."),
          ],
          confirm: "Use this token",
          act: async () => {
            const token = input.value.trim();
            if (!token) throw new Error("Give a token, as clients of this broker use it.");
            resolve(token);
            signOut.hidden = false;
          },
          cancelled: () => resolve(null),
        });
      }),
  );
  signOut.hidden = !hasToken();
  signOut.addEventListener("click", () => {
    forgetToken();
    location.reload();
  });
}
