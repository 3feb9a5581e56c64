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
}
