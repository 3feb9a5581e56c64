// Lanes: one line per request, below the strip's columns.

import {begin, sizeOf, tellOnce} from "./canvas.js";
import {hatching, requestColor, themeColor} from "./colors.js";
import {COLUMN} from "./cursor.js";

const LANE = 9;
const MAX_LANES = 400;

export class Lanes {
  constructor(canvas, cursor) {
    this.canvas = canvas;
    this.cursor = cursor;
    this.shown = [];
  }

  draw(run) {
    const {width} = sizeOf(this.canvas);
    const [from, end] = this.cursor.range(run, width);
    this.shown = visible(run, from, end);
    const {context} = begin(this.canvas, Math.max(LANE * 4, this.shown.length * LANE + 2));
    const left = width - (end - from) * COLUMN;
    const view = {context, from, end, x: (step) => left + (step - from) * COLUMN};
    this.shown.forEach((request, index) => drawLane(view, run, request, 1 + index * LANE));
    const step = this.cursor.selected;
    if (step !== null && step >= from && step < end) {
      context.strokeStyle = themeColor("text");
      context.strokeRect(view.x(step) - 1, 0, COLUMN + 1, this.shown.length * LANE + 1);
    }
    const running = this.shown.filter((request) => !request.ended).length;
    tellOnce(this.canvas, "aria-label", `${this.shown.length} requests in view, ${running} of them unfinished`);
  }

  requestAt(event) {
    return this.shown[Math.floor((event.offsetY - 1) / LANE)] ?? null;
  }
}

function visible(run, from, end) {
  const shown = [];
  for (const request of run.requests.values()) {
    if (request.firstStep < end && (request.lastStep === null || request.lastStep >= from)) shown.push(request);
  }
  return shown.slice(-MAX_LANES);
}

function drawLane({context, from, end, x}, run, request, y) {
  const first = Math.max(from, request.firstStep);
  const last = Math.min(end, request.lastStep === null ? end : request.lastStep + 1);
  let at = first;  // drawn up to this step
  let waits = request.segments.length && request.segments[0].from < first ? "left out" : "queued";
  const wait = (to, kind) => {
    if (to <= at) return;
    const isHatched = kind.startsWith("preempted");
    context.fillStyle = isHatched ? hatching(context) : themeColor(kind === "queued" ? "waiting" : "line");
    context.fillRect(x(at), y + (isHatched ? 1 : 3), (to - at) * COLUMN, isHatched ? LANE - 3 : 2);
  };
  for (const {kind, from: begins, to} of request.segments) {
    if (begins >= end) break;
    if (to >= from) {
      wait(Math.min(begins, last), waits);
      drawSegment(context, request, kind, x(Math.max(begins, from)), y, (Math.min(to + 1, end) - Math.max(begins, from)) * COLUMN);
      at = Math.max(at, to + 1);
    }
    waits = kind.startsWith("preempted") ? kind : "left out";
  }
  wait(last, waits);
  if (request.forcedStep !== null && request.forcedStep >= from && request.forcedStep < end) {
    context.fillStyle = themeColor("accent");
    context.fillRect(x(request.forcedStep), y, Math.max(2, (last - request.forcedStep) * COLUMN), 2);
  }
  if (request.finishReason && request.lastStep < end && request.lastStep >= from) {
    context.fillStyle = themeColor(["stop", "length"].includes(request.finishReason) ? "text" : "bad");
    context.fillRect(x(request.lastStep + 1) - 2, y, 2, LANE - 1);
  }
}

function drawSegment(context, request, kind, x, y, width) {
  if (kind === "chunk") {
    context.fillStyle = requestColor(request.number);
    context.fillRect(x, y, width - 1, LANE - 1);
  } else if (kind === "decode") {
    context.fillStyle = requestColor(request.number, {light: true});
    context.fillRect(x, y + 1, width, LANE - 3);
    if (!request.drafted) return;
    context.fillStyle = themeColor("text");
    context.fillRect(x, y + LANE - 2, width * request.accepted / request.drafted, 1);
  } else {
    context.fillStyle = hatching(context);
    context.fillRect(x, y, width, LANE - 1);
  }
}
