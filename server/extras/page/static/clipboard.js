// Copies text, also on pages without HTTPS, where browsers have no clipboard API.

import {element} from "./dom.js";
import {glyph} from "./icons.js";

const COPIED_MS = 1500;

async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = element("textarea", {value: text});
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

export function copyButton(text, {label = "Copy", className = "plain icon"} = {}) {
  const button = element("button", {type: "button", className, title: label, ariaLabel: label}, glyph("copy"));
  button.addEventListener("click", async () => {
    await copyText(text());
    button.replaceChildren(glyph("check"));
    button.setAttribute("aria-label", "Copied");
    setTimeout(() => {
      button.replaceChildren(glyph("copy"));
      button.setAttribute("aria-label", label);
    }, COPIED_MS);
  });
  return button;
}

export function saveFile(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], {type}));
  element("a", {href: url, download: name}).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
