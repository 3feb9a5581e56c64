// Files: opens recordings and saves the view.

import {byId, element} from "./dom.js";
import {toTrace} from "./perfetto.js";
import {readRun} from "./recording.js";
import {savedPage} from "./saved.js";

const MAX_FILE_BYTES = 256 * 1024 * 1024;

export class Files {
  constructor({run, show, showLive}) {
    this.words = byId("files-words");
    byId("open").addEventListener("change", (event) => this.tell(() => this.open(event.target.files[0], show)));
    byId("live").addEventListener("click", () => {
      byId("live").hidden = true;
      showLive();
    });
    byId("save-page").addEventListener("click", () => this.tell(async () =>
      save("splitfuse.html", "text/html", await savedPage(run(), loadText))));
    byId("save-trace").addEventListener("click", () => this.tell(async () =>
      save("splitfuse-trace.json", "application/json", JSON.stringify(toTrace(run())))));
  }

  async tell(action) {
    try {
      this.words.textContent = await action();
    } catch (error) {
      this.words.textContent = error.message;
    }
  }

  async open(file, show) {
    if (!file) return "";
    if (file.size > MAX_FILE_BYTES) throw new Error(`${file.name} is too large to be shown: over 256 MiB`);
    const run = readRun(await file.text(), file.name);
    show(run);
    byId("live").hidden = false;
    return `${file.name}: ${run.count} steps, the last ${run.steps.length} of them are shown.`;
  }
}

async function loadText(path) {
  return (await fetch(path || ".", {headers: path ? {} : {Accept: "text/html"}})).text();
}

function save(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], {type}));
  element("a", {href: url, download: name}).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
  return `${name}: ${Math.round(text.length / 1024)} KiB.`;
}
