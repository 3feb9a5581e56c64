// Thin strip above the chat: a column per step, as high as the step was long, split as its tokens were.

import {begin, sizeOf, tellOnce} from "./canvas.js";
import {themeColor} from "./colors.js";
import {rateAt} from "./figures.js";

const STEP_WIDTH = 5;
const GAP = 1.5;

export class LiveStrip {
  constructor(canvas, words) {
    this.canvas = canvas;
    this.words = words;
    this.key = "";
  }

  // `own`: ids of the requests of this page, in the accent's colour.
  draw(run, own, isOpen) {
    const key = [run.version, innerWidth, themeColor("accent"), isOpen, own.size].join();
    if (key === this.key && run === this.run) return;
    this.key = key;
    this.run = run;
    const {context, width, height} = begin(this.canvas);
    const steps = run.steps.slice(-Math.floor(width / STEP_WIDTH));
    const numbers = new Set([...run.requests.values()].filter((request) => own.has(request.id)).map((request) => request.number));
    const longest = Math.max(0.004, ...steps.map((record) => record.end - record.start));
    let x = width - steps.length * STEP_WIDTH;
    for (const record of steps) {
      drawStep(context, record, {x, height, scale: (height - 4) / longest, numbers});
      x += STEP_WIDTH;
    }
    context.fillStyle = themeColor("line");
    context.fillRect(0, height - 1, width, 1);
    this.tell(run, isOpen);
  }

  tell(run, isOpen) {
    const last = run.steps.at(-1);
    const running = last?.running ?? 0;
    const isBusy = isOpen && last && [...run.requests.values()].some((request) => !request.ended);
    const text = !isOpen ? "" : isBusy ? `${Math.round(rateAt(run)).toLocaleString("en")} tokens/s now, ${running} ${running === 1 ? "answer" : "answers"} running` : "The engine rests";
    if (this.words.textContent !== text) this.words.textContent = text;
    tellOnce(this.canvas, "aria-label", `The engine's last ${Math.min(run.steps.length, Math.floor(sizeOf(this.canvas).width / STEP_WIDTH))} steps`);
  }
}

function drawStep(context, record, {x, height, scale, numbers}) {
  const {prefill, decode} = record.tokens;
  const whole = Math.max(3, (record.end - record.start) * scale);
  const isOwn = (record.decodes || []).some((number) => numbers.has(number));
  const ownPrompt = (record.chunks ?? []).some(([number]) => numbers.has(number));
  const prompt = prefill ? Math.max(2, whole * prefill / (prefill + decode)) : 0;
  context.fillStyle = themeColor(isOwn ? "accent" : "decode");
  context.fillRect(x, height - 1 - whole, STEP_WIDTH - GAP, whole - prompt);
  context.fillStyle = themeColor(ownPrompt ? "waiting" : "edge");
  context.fillRect(x, height - 1 - prompt, STEP_WIDTH - GAP, prompt);
}
