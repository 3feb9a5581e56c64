// One request: its shape, and the steps in which it had tokens. The run counts steps from 0.

const MAX_SEGMENTS = 600;

export class RequestTrack {
  constructor(shape, step) {
    Object.assign(this, {index: 0, prompt: 0, max: 0, background: false, id: null}, shape);
    this.firstStep = step;
    this.lastStep = null;  // null until the request has ended
    this.finishReason = null;
    this.segments = [];  // {kind, from, to}: chunk, decode or preempted; in gaps it waited, or was left out
    this.cached = 0;
    this.tokens = 0;  // output tokens seen here
    this.forcedStep = null;  // step from which its grammar leads it to an end
    this.drafted = 0;
    this.accepted = 0;
    this.chunks = 0;
    this.preemptions = [];
    this.lastToken = null;  // time of the last token
    this.longestGap = 0;  // seconds between two tokens
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
