// State of the server, asked from /ready: more often while it is away, with a countdown.

const RETRY_S = 4;
const READY_MS = 10000;
const TIMEOUT_MS = 5000;

export class ServerWatch {
  // onState(kind, seconds): ready, loading, draining, failed, stalled or gone, and seconds until the next try.
  constructor(onState) {
    this.onState = onState;
    this.kind = "unknown";
    this.waiting = [];
    this.wakeUp = () => {};
  }

  async follow() {
    for (;;) {
      this.kind = await readyState();
      if (this.kind === "ready") {
        this.onState("ready", 0);
        this.waiting.splice(0).forEach((call) => call());
        await this.rest(READY_MS);
        continue;
      }
      for (let left = RETRY_S; left > 0; left -= 1) {
        this.onState(this.kind, left);
        if (await this.rest(1000)) break;
      }
    }
  }

  // Ends the current wait.
  poke() {
    this.wakeUp();
  }

  // Resolves while the server takes work.
  ready() {
    return this.kind === "ready" ? Promise.resolve() : new Promise((resolve) => { this.waiting.push(resolve); });
  }

  // A request has failed without an answer.
  suspect() {
    if (this.kind === "ready") this.kind = "unknown";
    this.poke();
  }

  // Returns true if it was woken.
  rest(ms) {
    return new Promise((resolve) => {
      const timer = setTimeout(() => resolve(false), ms);
      this.wakeUp = () => {
        clearTimeout(timer);
        resolve(true);
      };
    });
  }
}

async function readyState() {
  try {
    const response = await fetch("ready", {signal: AbortSignal.timeout(TIMEOUT_MS)});
    if (response.ok) return "ready";
    const code = (await response.json().catch(() => ({}))).error?.code;
    if (code === "store") return "ready";  // chats are not stored by the server
    return code ?? "gone";
  } catch {
    return "gone";
  }
}
