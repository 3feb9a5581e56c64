// Banner: says in words that the server takes no work, and when the page tries again.

import {byId, element} from "./dom.js";

const SENTENCES = {
  gone: () => `The server at ${location.host} does not answer.`,
  loading: () => "The model is still loading.",
  draining: () => "The server is shutting down: it finishes its answers and takes no new ones.",
  failed: () => "The model could not be loaded; the server's log says why.",
  stalled: () => "The engine makes no progress; its log may say why.",
};

export class Banner {
  constructor(onRetry) {
    this.box = byId("banner");
    this.words = element("p", {role: "status"});
    this.countdown = element("span", {ariaHidden: "true"});
    this.kind = null;
    this.box.append(this.words, this.countdown, element("button", {type: "button", onclick: onRetry}, "Try now"));
  }

  show(kind, seconds) {
    this.box.hidden = kind === "ready";
    document.body.classList.toggle("is-away", kind !== "ready");
    if (this.kind !== kind) this.words.textContent = kind === "ready" ? "" : (SENTENCES[kind] ?? SENTENCES.gone)();
    this.kind = kind;
    this.countdown.textContent = `Trying again in ${seconds} s`;
  }
}
