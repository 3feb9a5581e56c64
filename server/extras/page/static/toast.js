// A short notice at the foot of the page, with an action to undo what happened.

import {element} from "./dom.js";

const SHOWN_MS = 7000;

export function showToast(text, undo = null) {
  document.getElementById("toast")?.remove();
  const toast = element("div", {id: "toast", role: "status"}, text);
  if (undo) {
    toast.append(element("button", {type: "button", onclick: () => {
      toast.remove();
      undo();
    }}, "Undo"));
  }
  (document.querySelector("main") ?? document.body).append(toast);
  setTimeout(() => toast.remove(), SHOWN_MS);
}
