// Figures: numbers, and four small charts of the steps in view.

import {begin} from "./canvas.js";
import {themeColor} from "./colors.js";
import {byId, element} from "./dom.js";
import {milliseconds} from "./words.js";

const BUCKETS = 40;  // buckets of the histogram, from 1 ms to 10 s
const RATE_STEPS = 400;
const EVERY_MS = 300;

export class Figures {
  constructor(list) {
    this.list = list;
    this.timer = null;
    this.shown = null;
  }

  // Updates a few times a second, as fast as people read.
  draw(run, range) {
    this.shown = [run, range];
    if (this.timer === null) {
      this.drawNow();
      this.timer = setTimeout(() => {
        this.timer = null;
        if (this.shown !== null) this.draw(...this.shown);
      }, EVERY_MS);
    }
  }

  drawNow() {
    const [run, [from, end]] = this.shown;
    this.shown = null;
    this.tell(run);
    const records = run.steps.slice(Math.max(0, from - run.first), end - run.first);
    const target = run.about.target_itl_ms;
    drawBars(byId("chart-gap"), records.map((record) => record.longest * 1000), {target, unit: "ms"});
    drawBars(byId("chart-queue"), records.map((record) => record.running ?? 0), {over: records.map((record) => record.waiting ?? 0)});
    drawBars(byId("chart-rate"), rates(records), {unit: "/s"});
    drawBars(byId("chart-histogram"), histogram(run.gaps), {labels: ["1 ms", "100 ms", "10 s"]});
  }

  tell(run) {
    const target = run.about.target_itl_ms;
    const last = run.steps.at(-1);
    const sorted = run.gaps.slice(-4000).sort((a, b) => a - b);
    const firsts = run.ttfts.slice(-400).sort((a, b) => a - b);
    const gap99 = percentile(sorted, 0.99);
    const rows = [
      ["first token, median", inMs(percentile(firsts, 0.5))],
      ["first token, 95 %", inMs(percentile(firsts, 0.95))],
      ["gap, median", inMs(percentile(sorted, 0.5))],
      ["gap, 99 %", inMs(gap99), target && gap99 * 1000 > target],
      ...(target ? [["gap, target", `${target} ms`]] : []),
      ["output tokens/s", String(Math.round(rateAt(run)))],
      ["running", String(last?.running ?? 0)],
      ["waiting", String(last?.waiting ?? 0)],
      ["prefix hits", run.lookedUp ? `${Math.round(100 * run.found / run.lookedUp)} %` : "–"],
      ...(run.lost ? [["batches not shown", String(run.lost)]] : []),
    ];
    this.list.replaceChildren(...rows.map(([name, value, missed]) =>
      element("div", {}, element("dt", {}, name), element("dd", {className: missed ? "missed" : ""}, value))));
  }
}

function percentile(sorted, share) {
  return sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] : null;
}

// Output tokens per second, over the last steps.
export function rateAt(run) {
  return rates(run.steps.slice(-RATE_STEPS)).at(-1) ?? 0;
}

function inMs(seconds) {
  return seconds === null ? "–" : milliseconds(seconds);
}

// Output tokens per second at each step, over the half second before it.
function rates(records) {
  const found = [];
  let [first, sum] = [0, 0];
  records.forEach((record, index) => {
    sum += record.outputs;
    while (first < index && records[first].end < record.end - 0.5) sum -= records[first++].outputs;
    found.push(sum / Math.max(0.05, record.end - records[first].start));
  });
  return found;
}

function histogram(gaps) {
  const counts = new Array(BUCKETS).fill(0);
  for (const gap of gaps) {
    const bucket = Math.floor((Math.log10(Math.max(gap, 1e-9)) + 3) / 4 * BUCKETS);
    counts[Math.max(0, Math.min(BUCKETS - 1, bucket))] += 1;
  }
  return counts;
}

function drawBars(canvas, values, {target = null, over = [], unit = "", labels = []}) {
  const {context, width, height} = begin(canvas);
  const base = height - 14;
  let most = target ? target * 1.1 : 1;
  values.forEach((value, index) => { most = Math.max(most, value + (over[index] ?? 0)); });
  const step = width / Math.max(1, values.length);
  values.forEach((value, index) => {
    const lower = value / most * (base - 12);
    const upper = (over[index] ?? 0) / most * (base - 12);
    context.fillStyle = themeColor("accent");
    context.fillRect(index * step, base - lower, Math.max(step - (step > 3), 0.7), lower);
    context.fillStyle = themeColor("waiting");
    if (upper) context.fillRect(index * step, base - lower - upper, Math.max(step - (step > 3), 0.7), upper);
  });
  context.fillStyle = themeColor("quiet");
  context.fillText(`${most >= 10 ? Math.round(most) : most.toFixed(1)} ${unit}`, 2, 10);
  labels.forEach((label, index) => {
    const text = context.measureText(label).width;
    context.fillText(label, Math.min(width - text, Math.max(0, index / (labels.length - 1) * width - text / 2)), height - 2);
  });
  if (!target) return;
  const y = base - target / most * (base - 12);
  context.fillStyle = themeColor("bad");
  context.fillRect(0, y, width, 1);
}
