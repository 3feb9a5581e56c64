// The field for the next message. Enter sends, Shift+Enter is a new line, Escape stops the answer.

import {Attachments} from "./attachments.js";
import {byId} from "./dom.js";

const MAX_HEIGHT = 240;  // pixels

export class Composer {
  constructor({onSend, onStop, onFault}) {
    this.area = byId("prompt");
    this.form = byId("composer");
    this.attachments = new Attachments(onFault);
    this.onSend = onSend;
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    byId("stop").addEventListener("click", onStop);
    this.area.addEventListener("input", () => this.fit());
    this.area.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.send();
    });
    addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !document.querySelector("dialog[open]")) onStop();
    });
  }

  send() {
    const text = this.area.value.trim();
    if (byId("send").hidden || (!text && !this.attachments.files.length)) return;
    if (!this.onSend(text, this.attachments.files)) return;  // the text stays
    this.attachments.take();
    this.write("");
  }

  write(text) {
    this.area.value = text;
    this.fit();
  }

  fit() {
    this.area.style.height = "auto";
    this.area.style.height = `${Math.min(MAX_HEIGHT, this.area.scrollHeight)}px`;
  }

  setRunning(isRunning) {
    byId("send").hidden = isRunning;
    byId("stop").hidden = !isRunning;
  }
}
