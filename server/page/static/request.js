// One request as the page knows it: its shape, and in which steps it had tokens. Steps are counted from 0 by the run.

const MAX_SEGMENTS = 600;

export class RequestTrack {
  constructor(shape, step) {
    Object.assign(this, {index: 0, prompt: 0, max: 0, background: false, id: null}, shape);
    this.firstStep = step;
    this.lastStep = null;  // until it has ended
    this.finishReason = null;
    this.segments = [];  // {kind, from, to}: chunk, decode or preempted; nothing in between: it waited, or was left out
    this.cached = 0;
    this.tokens = 0;  // of output, seen here
    this.forcedStep = null;  // from here on its grammar leads it to an end
    this.drafted = 0;
    this.accepted = 0;
    this.chunks = 0;
    this.preemptions = [];
    this.lastToken = null;  // when
    this.ttft = null;
  }

  get ended() {
    return this.finishReason !== null;
  }

  extend(kind, step) {
    const last = this.segments.at(-1);
    if (last && last.kind === kind && last.to === step - 1) {
      last.to = step;
      return;
    }
    this.segments.push({kind, from: step, to: step});
    if (this.segments.length > MAX_SEGMENTS) this.segments.shift();
  }

  // What the request did in a step: chunk, decode, preempted, queued or left out; null when it was not there.
  stateAt(step) {
    if (step < this.firstStep || (this.lastStep !== null && step > this.lastStep)) return null;
    let before = null;
    for (const segment of this.segments) {
      if (segment.from > step) break;
      if (segment.to >= step) return segment.kind;
      before = segment;
    }
    if (before === null) return this.running ? "left out" : "queued";
    return before.kind.startsWith("preempted") ? before.kind : "left out";
  }
}
