// Connects a run (live, from a file, or saved in this page) to the views that show it.

import {Api} from "./api.js";
import {Banner} from "./banner.js";
import {Blocks} from "./blocks.js";
import {sizeOf} from "./canvas.js";
import {requestColor, themeColor} from "./colors.js";
import {Cursor} from "./cursor.js";
import {openDialog, showRequest} from "./dialog.js";
import {byId, element, legend} from "./dom.js";
import {Feed} from "./feed.js";
import {Figures, rateAt} from "./figures.js";
import {Files} from "./files.js";
import {KeyScreen} from "./key_screen.js";
import {Laboratory} from "./laboratory.js";
import {Lanes} from "./lanes.js";
import {Playground} from "./playground.js";
import {Run} from "./run.js";
import {ServerWatch} from "./server_watch.js";
import {Strip} from "./strip.js";
import {isDark, useThemes} from "./theme.js";

const saved = byId("saved");
const api = saved ? null : new Api();
const banner = saved ? null : new Banner(() => watch.poke());
const watch = saved ? null : new ServerWatch((kind, seconds) => banner.show(kind, seconds));
const feed = saved ? null : new Feed(api, watch);
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
  const state = [run.version, feed?.isOpen, cursor.version, innerWidth, cursor.isPaused, isDark()].join();
  if (state === drawn && run === draw.run) return;
  drawn = state;
  draw.run = run;
  byId("pause").setAttribute("aria-pressed", String(cursor.isPaused));
  strip.draw(run);
  lanes.draw(run);
  blocks.draw(run);
  figures.draw(run, cursor.range(run, sizeOf(byId("strip-canvas")).width));
  drawLegends();
  if (!opened && run.about.model) sayNow(run);
}

// The server's work in words, a few times a second.
function sayNow(run) {
  if (sayNow.time > performance.now() - 300) return;
  sayNow.time = performance.now();
  const {about} = run;
  const running = [...run.requests.values()].filter((request) => !request.ended).length;
  const work = running ? `${Math.round(rateAt(run)).toLocaleString("en")} tokens/s now, ${running} answer${running === 1 ? "" : "s"} running` : "it rests";
  const facts = `policy ${about.batching_policy}, ${about.budget} tokens a step, ${about.max_num_seqs} requests at once, ` +
    `${about.num_blocks} blocks of ${about.block_size}${about.watches === "own" ? "; your key sees its own requests" : ""}`;
  for (const [id, text] of [["now", `${about.model}: ${work}`], ["about", facts]]) {
    if (byId(id).textContent !== text) byId(id).textContent = text;
  }
}

function drawLegends() {
  const key = String(isDark());
  if (drawLegends.key === key) return;
  drawLegends.key = key;
  legend(byId("strip-legend"), [["prompt chunks, in their request's colour", "own"], ["decodes", themeColor("decode")],
    ["a request waits", themeColor("waiting")], ["one was preempted", "hatched"]]);
  legend(byId("lanes-legend"), [["chunk, in its request's colour", "own"], ["decode", requestColor(0, {light: true})], ["queued", themeColor("waiting")],
    ["preempted", "hatched"], ["ended early", themeColor("bad")], ["left out", themeColor("line")],
    ["led to its end by its grammar", themeColor("accent")]]);
  legend(byId("blocks-legend"), [["in use, in its request's colour", "own"], ["shared", themeColor("text")],
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
  byId("now").textContent = `A saved view of ${opened.about.model ?? opened.about.name ?? "a run"}: policy ${opened.about.batching_policy ?? "not known"}`;
  byId("files").hidden = true;
} else {
  new KeyScreen(api, () => {
    feed.wake();
    playground.attach();
  });
  new Laboratory(api, {run: () => feed.run});
  new Files({run: current, show, showLive: () => show(null)});
  watch.follow();
  feed.follow();
}
const playground = saved ? null : new Playground(api, {
  model: () => feed.run.about.model,
  explain: (seqId) => explainRequest([...feed.run.requests.values()].find((each) => each.id === seqId) ?? {number: seqId.slice(0, 8), id: seqId, segments: []}),
});
playground?.attach();
useThemes();
draw();
