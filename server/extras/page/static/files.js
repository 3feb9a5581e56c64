// Files: opens recordings and saves the view.

import {saveFile} from "./clipboard.js";
import {byId, tell} from "./dom.js";
import {toTrace} from "./perfetto.js";
import {readRun} from "./recording.js";
import {savedPage} from "./saved.js";

const MAX_FILE_BYTES = 256 * 1024 * 1024;

function download(name, type, text) {
  saveFile(name, type, text);
  return `${name}: ${Math.round(text.length / 1024)} KiB.`;
}

export class Files {
  constructor({run, show, showLive}) {
    byId("open").addEventListener("change", (event) => tell("files-words", () => this.open(event.target.files[0], show)));
    byId("live").addEventListener("click", () => {
      byId("live").hidden = true;
      showLive();
    });
    byId("save-page").addEventListener("click", () => tell("files-words", async () =>
      download("splitfuse.html", "text/html", await savedPage(run(), loadText))));
    byId("save-trace").addEventListener("click", () => tell("files-words", async () =>
      download("splitfuse-trace.json", "application/json", JSON.stringify(toTrace(run())))));
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
  return (await fetch(path || "engine", {headers: path ? {} : {Accept: "text/html"}})).text();
}
