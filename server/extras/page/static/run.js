// History of an engine: the last steps, and the requests in them.

import {RequestTrack} from "./request.js";

const MAX_STEPS = 2000;
const MAX_GAPS = 20000;

export class Run {
  constructor(about = {}) {
    this.about = about;
    this.steps = [];  // the last MAX_STEPS; steps[i] has number `first` + i
    this.first = 0;
    this.requests = new Map();
    this.blocks = null;
    this.evicted = 0;
    this.gaps = [];  // seconds, the last MAX_GAPS
    this.ttfts = [];
    this.lookedUp = 0;
    this.found = 0;
    this.lost = 0;
    this.version = 0;  // grows with each change
  }

  get count() {
    return this.first + this.steps.length;
  }

  step(number) {
    return this.steps[number - this.first];
  }

  addRequests(shapes) {
    for (const shape of shapes) this.request(shape.number, shape);
    this.version += 1;
  }

  request(number, shape = {number}) {
    let request = this.requests.get(number);
    if (!request) {
      request = new RequestTrack(shape, this.count);
      this.requests.set(number, request);
    } else if (shape.id) {
      Object.assign(request, shape);
    }
    return request;
  }

  addSteps(records) {
    let before = [];
    for (const record of records) {
      if (record.decodes === true) record.decodes = before;  // unchanged since the previous record
      before = record.decodes ?? [];
      this.addStep(record);
    }
    if (this.steps.length > MAX_STEPS * 1.25) this.forget();
    if (this.gaps.length > MAX_GAPS * 1.25) this.gaps.splice(0, this.gaps.length - MAX_GAPS);
    if (this.ttfts.length > MAX_STEPS) this.ttfts.splice(0, this.ttfts.length - MAX_STEPS);
    this.version += 1;
  }

  addStep(record) {
    const step = this.count;
    this.steps.push(record);
    record.tokens = tokensOf(record);
    record.longest = 0;
    record.outputs = 0;
    for (const [number, cached] of record.admitted ?? []) this.admit(this.request(number), cached);
    for (const [number, start, tokens] of record.chunks ?? []) this.addChunk(this.request(number), start + tokens, record, step);
    for (const [number, drafted, accepted] of record.drafts ?? []) {
      const request = this.request(number);
      request.drafted += drafted;
      request.accepted += accepted;
      record.outputs += accepted;
    }
    for (const number of record.decodes ?? []) {
      const request = this.request(number);
      request.running = true;
      request.extend("decode", step);
      this.addToken(request, record);
    }
    for (const number of record.forced ?? []) this.request(number).forcedStep ??= step;
    for (const [number, mode, swap, recompute] of record.preempted ?? []) {
      const request = this.request(number);
      request.preemptions.push({step, mode, swap, recompute});
      request.extend(`preempted ${mode}`, step);
    }
    this.evicted += record.evicted ?? 0;
  }

  admit(request, cached) {
    if (!request.preemptions.length) {
      this.lookedUp += request.prompt;
      this.found += cached;
      request.cached = cached;
    }
    request.running = true;
  }

  addChunk(request, end, record, step) {
    request.running = true;
    request.chunks += 1;
    request.extend("chunk", step);
    if (end < request.prompt + request.tokens) return;
    if (request.ttft === null && request.arrival !== undefined) {
      request.ttft = record.end - request.arrival;
      this.ttfts.push(request.ttft);
    }
    this.addToken(request, record);
  }

  addToken(request, record) {
    record.outputs += 1;
    request.tokens += 1;
    if (request.lastToken !== null) {
      const gap = record.end - request.lastToken;
      this.gaps.push(gap);
      if (gap > record.longest) record.longest = gap;
      if (gap > request.longestGap) request.longestGap = gap;
    }
    request.lastToken = record.end;
  }

  addEnds(ends) {
    for (const [number, reason, time] of ends) {
      const request = this.request(number);
      request.finishReason = reason;
      request.lastStep = this.lastStepAt(time);
    }
    this.version += 1;
  }

  // Returns the last step that had begun by that time.
  lastStepAt(time = Infinity) {
    let step = this.count - 1;
    while (step > this.first && this.step(step).start >= time) step -= 1;
    return step;
  }

  forget() {
    const extra = this.steps.length - MAX_STEPS;
    this.steps.splice(0, extra);
    this.first += extra;
    for (const [number, request] of this.requests) {
      if (request.ended && request.lastStep < this.first) this.requests.delete(number);
    }
  }
}

function tokensOf(record) {
  let prefill = 0;
  for (const [, , tokens] of record.chunks ?? []) prefill += tokens;
  let decode = (record.decodes ?? []).length;
  for (const [, drafted] of record.drafts ?? []) decode += drafted;
  return {prefill, decode};
}
