// Connects the run of the stream of steps to the views that show it.

import {Api} from "./api.js";
import {Banner} from "./banner.js";
import {Blocks} from "./blocks.js";
import {isDark, requestColor, themeColor} from "./colors.js";
import {Cursor} from "./cursor.js";
import {openDialog, showRequest} from "./dialog.js";
import {byId, element, legend} from "./dom.js";
import {Feed} from "./feed.js";
import {Figures, rateAt} from "./figures.js";
import {KeyScreen} from "./key_screen.js";
import {Lanes} from "./lanes.js";
import {ServerWatch} from "./server_watch.js";
import {Show} from "./show.js";
import {Strip} from "./strip.js";

const api = new Api();
const banner = new Banner(() => watch.poke());
const watch = new ServerWatch((kind, seconds) => banner.show(kind, seconds));
const feed = new Feed(api, watch);

const cursor = new Cursor();
const strip = new Strip(byId("strip-canvas"), byId("step-words"), cursor);
const lanes = new Lanes(byId("lanes-canvas"), cursor);
const blocks = new Blocks(byId("blocks-canvas"), byId("blocks-words"));
const figures = new Figures(byId("figures-list"));
let drawn = "";

function draw() {
  requestAnimationFrame(draw);
  const {run} = feed;
  const state = [run.version, feed.isOpen, cursor.version, innerWidth, cursor.isPaused, isDark()].join();
  if (state === drawn && run === draw.run) return;
  drawn = state;
  draw.run = run;
  byId("pause").setAttribute("aria-pressed", String(cursor.isPaused));
  strip.draw(run);
  lanes.draw(run);
  blocks.draw(run);
  figures.draw(run);
  drawLegends();
  if (run.about.model) sayNow(run);
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
  showRequest(feed.run, request, api).catch((error) => openDialog("No explanation", element("p", {}, error.message)));
}

strip.listen(() => feed.run);
byId("pause").addEventListener("click", () => cursor.pause(feed.run, !cursor.isPaused));
byId("lanes-canvas").addEventListener("click", (event) => explainRequest(lanes.requestAt(event)));
byId("explain-button").addEventListener("click", () => explainRequest(feed.run.requests.get(Number(byId("explain-number").value))));
byId("dialog-close").addEventListener("click", () => byId("dialog").close());
new KeyScreen(api, () => feed.wake());
new Show(api, {run: () => feed.run});
watch.follow();
feed.follow();
draw();
