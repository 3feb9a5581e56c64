// Figures: times, rates and counts of the last steps.

import {element} from "./dom.js";
import {milliseconds} from "./words.js";

const RATE_STEPS = 400;
const RATE_S = 0.5;
const EVERY_MS = 300;

export class Figures {
  constructor(list) {
    this.list = list;
    this.timer = null;
    this.shown = null;
  }

  // Updates a few times a second, as fast as people read.
  draw(run) {
    this.shown = run;
    if (this.timer !== null) return;
    this.timer = setTimeout(() => {
      this.timer = null;
      this.tell(this.shown);
    }, EVERY_MS);
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

// Output tokens per second, over the last half second of steps.
export function rateAt(run) {
  const last = run.steps.at(-1);
  if (!last) return 0;
  const shown = run.steps.slice(-RATE_STEPS).filter((record) => record.end >= last.end - RATE_S);
  return shown.reduce((sum, record) => sum + record.outputs, 0) / Math.max(0.05, last.end - shown[0].start);
}

function inMs(seconds) {
  return seconds === null ? "–" : milliseconds(seconds);
}
