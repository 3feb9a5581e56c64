// Connects a run (live, from a file, or saved in this page) to the views that show it.

import {Api} from "./api.js";
import {Blocks} from "./blocks.js";
import {sizeOf} from "./canvas.js";
import {isDark, requestColor, themeColor} from "./colors.js";
import {Cursor} from "./cursor.js";
import {openDialog, showRequest} from "./dialog.js";
import {byId, element, legend} from "./dom.js";
import {Feed} from "./feed.js";
import {Figures} from "./figures.js";
import {Files} from "./files.js";
import {Laboratory} from "./laboratory.js";
import {Lanes} from "./lanes.js";
import {Playground} from "./playground.js";
import {Run} from "./run.js";
import {Strip} from "./strip.js";

const saved = byId("saved");
const api = saved ? null : new Api();
const feed = saved ? null : new Feed(api, {
  onAbout: (text) => { byId("about").textContent = text; },
  onState: (text) => { byId("connection").textContent = text; },
});
let opened = saved ? Run.ofData(JSON.parse(saved.textContent)) : null;
const current = () => opened ?? feed.run;

const cursor = new Cursor();
const strip = new Strip(byId("strip-canvas"), byId("step-words"), cursor);
const lanes = new Lanes(byId("lanes-canvas"), cursor);
const blocks = new Blocks(byId("blocks-canvas"), byId("blocks-words"));
const figures = new Figures(byId("figures-list"));
let drawn = "";

function draw() {
  requestAnimationFrame(draw);
  const run = current();
  const state = [run.version, cursor.version, innerWidth, cursor.isPaused, isDark()].join();
  if (state === drawn && run === draw.run) return;
  drawn = state;
  draw.run = run;
  byId("pause").setAttribute("aria-pressed", String(cursor.isPaused));
  strip.draw(run);
  lanes.draw(run);
  blocks.draw(run);
  figures.draw(run, cursor.range(run, sizeOf(byId("strip-canvas")).width));
  drawLegends();
}

function drawLegends() {
  const key = String(isDark());
  if (drawLegends.key === key) return;
  drawLegends.key = key;
  legend(byId("strip-legend"), [["prompt chunks, in their request's colour", requestColor(0)], ["decodes", themeColor("decode")],
    ["a request waits", themeColor("waiting")], ["one was preempted", themeColor("bad")]]);
  legend(byId("lanes-legend"), [["chunk", requestColor(0)], ["decode", requestColor(0, {light: true})], ["queued", themeColor("waiting")],
    ["preempted, or ended early", themeColor("bad")], ["left out", themeColor("line")],
    ["led to its end by its grammar", themeColor("accent")]]);
  legend(byId("blocks-legend"), [["in use, in its request's colour", requestColor(0)], ["shared", themeColor("text")],
    ["cached and free", themeColor("decode")], ["empty", themeColor("line")]]);
}

function explainRequest(request) {
  if (!request) return;
  showRequest(current(), request, opened ? null : api).catch((error) => openDialog("No explanation", element("p", {}, error.message)));
}

function show(run) {
  opened = run;
  cursor.pause(current(), run !== null);
  drawn = "";
}

strip.listen(current);
byId("pause").addEventListener("click", () => cursor.pause(current(), !cursor.isPaused));
byId("lanes-canvas").addEventListener("click", (event) => explainRequest(lanes.requestAt(event)));
byId("explain-button").addEventListener("click", () => explainRequest(current().requests.get(Number(byId("explain-number").value))));
byId("dialog-close").addEventListener("click", () => byId("dialog").close());

if (saved) {
  document.documentElement.classList.add("saved");
  byId("about").textContent = `A saved view of ${opened.about.model ?? opened.about.name ?? "a run"}: policy ${opened.about.batching_policy ?? "not known"}`;
  byId("files").hidden = true;
} else {
  api.onKeyWanted = () => { byId("key-form").hidden = false; };
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    api.key = byId("key").value;
    byId("key").value = "";
    byId("key-form").hidden = true;
    feed.wake();
    playground.attach();
  });
  new Laboratory(api, {run: () => feed.run});
  new Files({run: current, show, showLive: () => show(null)});
  feed.follow();
}
const playground = saved ? null : new Playground(api, {
  model: () => feed.run.about.model,
  explain: (seqId) => explainRequest([...feed.run.requests.values()].find((each) => each.id === seqId) ?? {number: seqId.slice(0, 8), id: seqId, segments: []}),
});
playground?.attach();
draw();
