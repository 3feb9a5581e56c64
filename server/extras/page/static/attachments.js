// Text files that go with the next message: dropped, pasted or chosen.

import {byId, element} from "./dom.js";
import {glyph} from "./icons.js";

const MAX_FILE = 512 * 1024;  // bytes
const LONG_PASTE = 4000;  // characters that become a file

export class Attachments {
  constructor(onFault) {
    this.onFault = onFault;
    this.files = [];
    this.box = byId("attached");
    byId("pick").addEventListener("click", () => byId("picked").click());
    byId("picked").addEventListener("change", (event) => {
      this.add(event.target.files);
      event.target.value = "";
    });
    addEventListener("dragover", (event) => {
      if (!event.dataTransfer.types.includes("Files")) return;
      event.preventDefault();
      document.body.classList.add("dropping");
    });
    addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("dropping"); });
    addEventListener("drop", (event) => {
      document.body.classList.remove("dropping");
      if (!event.dataTransfer.files.length) return;
      event.preventDefault();
      this.add(event.dataTransfer.files);
    });
    byId("prompt").addEventListener("paste", (event) => this.paste(event));
  }

  paste(event) {
    const text = event.clipboardData.getData("text/plain");
    if (event.clipboardData.files.length) this.add(event.clipboardData.files);
    else if (text.length > LONG_PASTE) this.keep(`pasted-${this.files.length + 1}.txt`, text);
    else return;
    event.preventDefault();
  }

  async add(files) {
    for (const file of files) {
      if (file.size > MAX_FILE) this.onFault(`${file.name} is too large: over 512 KiB.`);
      else {
        const text = await decoded(file);
        if (text === null) this.onFault(`${file.name} is not a text file.`);
        else this.keep(file.name, text);
      }
    }
  }

  keep(name, text) {
    this.files.push({name, text});
    this.draw();
  }

  take() {
    const files = this.files;
    this.files = [];
    this.draw();
    return files;
  }

  draw() {
    this.box.hidden = !this.files.length;
    this.box.replaceChildren(...this.files.map((file) => element("span", {className: "chip"}, glyph("file"), file.name,
      element("button", {type: "button", className: "plain icon", ariaLabel: `Remove ${file.name}`, onclick: () => {
        this.files = this.files.filter((other) => other !== file);
        this.draw();
      }}, glyph("close")))));
  }
}

async function decoded(file) {
  try {
    const text = new TextDecoder("utf-8", {fatal: true}).decode(await file.arrayBuffer());
    return text.includes("\0") ? null : text;
  } catch {
    return null;
  }
}
