// Key screen: stands alone while the server wants a key.

import {byId, element} from "./dom.js";

export class KeyScreen {
  constructor(api, onKey) {
    this.api = api;
    this.input = element("input", {id: "key", type: "password", autocomplete: "off", spellcheck: false, ariaLabel: "API key", placeholder: "API key"});
    this.words = element("p", {role: "status"});
    this.form = element("form", {id: "key-form", hidden: true},
      element("div", {className: "brand"}, element("img", {src: "page/icon.svg", alt: ""}), "splitfuse"),
      element("h1", {}, "This server needs a key"), this.words, this.input, element("button", {className: "main"}, "Use it"));
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      api.key = this.input.value.trim();
      this.input.value = "";
      this.hide();
      onKey();
    });
    document.body.append(this.form);
    api.onKeyWanted = () => this.show();
  }

  show() {
    if (!this.form.hidden) return;
    const isWrong = Boolean(this.api.key);
    this.words.textContent = isWrong ? "This key is not known here. Check it and try again." : "It stays in this tab and goes to this server only.";
    this.words.className = isWrong ? "wrong" : "";
    this.api.key = "";
    byId("app").hidden = true;
    this.form.hidden = false;
    this.input.focus();
  }

  hide() {
    this.form.hidden = true;
    byId("app").hidden = false;
  }
}
