// A simulated run over time: its steps, as high as they have tokens, and below them a line per request.

import {begin} from "./canvas.js";
import {requestColor, themeColor} from "./colors.js";
import {element} from "./dom.js";

const STEPS_HEIGHT = 44;
const [LINE, MAX_LINES] = [10, 5];

export class Timeline {
  constructor(run, policy, axes) {
    Object.assign(this, {run, axes});
    this.canvas = element("canvas", {role: "img", ariaLabel: `Steps and requests with ${policy}`});
    this.canvas.dataset.axes = [axes.from, axes.to, axes.most].map((value) => value.toFixed(3)).join(" ");
    this.figure = element("figure", {}, element("figcaption", {}, policy), this.canvas);
  }

  draw() {
    const {context, width} = begin(this.canvas, STEPS_HEIGHT + MAX_LINES * LINE + 6);
    const {run, axes: {from, to, most}} = this;
    const x = (time) => Math.max(0, Math.min(width, (time - from) / (to - from) * width));
    const shown = run.steps.filter((record) => record.end > from && record.start < to);
    for (const record of shown) drawTokens(context, record, x(record.start), x(record.end), (STEPS_HEIGHT - 2) / most);
    context.fillStyle = themeColor("line");
    context.fillRect(0, STEPS_HEIGHT, width, 1);
    const lines = [...run.requests.values()].filter((request) => request.arrival < to).sort((one, other) => other.prompt - one.prompt).slice(0, MAX_LINES);
    lines.forEach((request, index) => drawLine(context, request, shown, x, STEPS_HEIGHT + 5 + index * LINE));
  }
}

function drawTokens(context, record, left, right, perToken) {
  const width = Math.max(1, right - left - (right - left > 3 ? 1 : 0));
  let y = STEPS_HEIGHT;
  const add = (tokens, color) => {
    y -= Math.max(1, tokens * perToken);
    context.fillStyle = color;
    context.fillRect(left, y, width, Math.max(1, tokens * perToken));
  };
  if (record.tokens.decode) add(record.tokens.decode, themeColor("decode"));
  for (const [number, , tokens] of record.chunks ?? []) add(tokens, requestColor(number));
}

function drawLine(context, request, shown, x, y) {
  const last = request.lastToken ?? Infinity;
  for (const record of shown) {
    if (record.end <= request.arrival || record.start >= last) continue;
    const isChunk = (record.chunks ?? []).some(([number]) => number === request.number);
    const isInside = isChunk || (record.decodes ?? []).includes(request.number);
    const [left, right] = [x(Math.max(record.start, request.arrival)), x(record.end)];
    const width = Math.max(1, right - left - (isInside && right - left > 3 ? 1 : 0));
    context.fillStyle = isInside ? requestColor(request.number, {light: !isChunk}) : themeColor("edge");
    context.fillRect(left, isInside ? y : y + 3, width, isInside ? LINE - 2 : 2);
  }
}
