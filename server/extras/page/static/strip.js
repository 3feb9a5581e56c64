// Strip: one column per step. Height: tokens, with chunks in their request's colour above decodes. Below: durations.

import {begin, sizeOf} from "./canvas.js";
import {hatching, requestColor, themeColor} from "./colors.js";
import {COLUMN} from "./cursor.js";
import {milliseconds, stepWords} from "./words.js";

const BELOW = 44;  // pixels for durations
const ABOVE = 12;

export class Strip {
  constructor(canvas, words, cursor) {
    this.canvas = canvas;
    this.words = words;
    this.cursor = cursor;
    this.told = null;
  }

  draw(run) {
    const {context, width, height} = begin(this.canvas);
    const [from, end] = this.cursor.range(run, width);
    const left = width - (end - from) * COLUMN;
    const {mostTokens, longest} = scales(run, from, end);
    const base = height - BELOW;
    const perToken = (base - ABOVE) / mostTokens;
    for (let step = from; step < end; step += 1) {
      const record = run.step(step);
      const x = left + (step - from) * COLUMN;
      this.drawColumn(context, record, x, base, perToken);
      const seconds = record.end - record.start;
      context.fillStyle = themeColor("quiet");
      context.fillRect(x, base + 3, COLUMN - 1, Math.max(1, (BELOW - 16) * seconds / longest));
    }
    this.drawScales(context, {run, width, height, base, perToken, mostTokens, longest});
    this.drawSelected(context, run, from, end, left, height);
  }

  drawColumn(context, record, x, base, perToken) {
    const {decode} = record.tokens;
    const decodeHeight = decode && Math.max(2, decode * perToken);  // keeps a few decodes visible beside a large budget
    let y = base - decodeHeight;
    context.fillStyle = themeColor("decode");
    context.fillRect(x, y, COLUMN - 1, decodeHeight);
    for (const [number, , tokens] of record.chunks ?? []) {
      y -= tokens * perToken;
      context.fillStyle = requestColor(number);
      context.fillRect(x, y, COLUMN - 1, Math.max(tokens * perToken, 0.5));
    }
    if (record.preempted) {
      context.fillStyle = hatching(context);
      context.fillRect(x, base - 2, COLUMN, 6);
    }
    if (record.waiting) {
      context.fillStyle = themeColor("waiting");
      context.fillRect(x, 0, COLUMN - 1, 3);
    }
  }

  drawScales(context, {run, width, height, base, perToken, mostTokens, longest}) {
    context.strokeStyle = themeColor("line");
    context.beginPath();
    context.moveTo(0, base + 0.5);
    context.lineTo(width, base + 0.5);
    context.stroke();
    const budget = run.about.budget;
    if (budget && budget <= mostTokens * 1.01) {
      context.setLineDash([4, 4]);
      context.strokeStyle = themeColor("text");
      context.beginPath();
      context.moveTo(0, base - budget * perToken);
      context.lineTo(width, base - budget * perToken);
      context.stroke();
      context.setLineDash([]);
    }
    context.fillStyle = themeColor("quiet");
    context.fillText(`${mostTokens} tokens`, 4, ABOVE + 10);
    context.fillText(milliseconds(longest), 4, height - 2);
  }

  drawSelected(context, run, from, end, left, height) {
    const step = this.cursor.selected;
    if (step === null || step < run.first) return;
    if (step >= from && step < end) {
      context.strokeStyle = themeColor("text");
      context.strokeRect(left + (step - from) * COLUMN - 1, 0.5, COLUMN + 1, height - 1);
    }
    if (this.told !== step) this.tell(run, step);
  }

  tell(run, step) {
    this.told = step;
    const text = stepWords(run, step);
    this.words.textContent = text;
    this.canvas.setAttribute("aria-valuemax", String(run.count - 1));
    this.canvas.setAttribute("aria-valuenow", String(step));
    this.canvas.setAttribute("aria-valuetext", text);
  }

  listen(current) {
    const canvas = this.canvas;
    const width = () => sizeOf(canvas).width;
    canvas.addEventListener("pointermove", (event) => this.point(current(), event));
    canvas.addEventListener("pointerdown", (event) => {
      this.cursor.pause(current(), true);
      this.point(current(), event);
    });
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.cursor.scroll(current(), Math.round((event.deltaX || event.deltaY) / COLUMN));
    }, {passive: false});
    const moves = {ArrowLeft: -1, ArrowRight: 1, PageUp: -50, PageDown: 50, Home: -1e9, End: 1e9};
    canvas.addEventListener("keydown", (event) => {
      if (event.key in moves) this.cursor.move(current(), moves[event.key], width());
      else if (event.key === " ") this.cursor.pause(current(), !this.cursor.isPaused);
      else return;
      event.preventDefault();
    });
  }

  point(run, event) {
    const {width} = sizeOf(this.canvas);
    const [, end] = this.cursor.range(run, width);
    this.cursor.select(run, end - 1 - Math.floor((width - event.offsetX) / COLUMN));
  }
}

function scales(run, from, end) {
  let mostTokens = 16;
  let longest = 0.001;
  for (let step = from; step < end; step += 1) {
    const record = run.step(step);
    const {prefill, decode} = record.tokens;
    mostTokens = Math.max(mostTokens, prefill + decode);
    longest = Math.max(longest, record.end - record.start);
  }
  const budget = run.about.budget ?? 0;
  return {mostTokens: mostTokens > budget / 8 ? Math.max(mostTokens, budget) : mostTokens, longest};
}
