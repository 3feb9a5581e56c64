// Stream of steps, and the run that grows from it. Reconnects while the page is open.

import {Run} from "./run.js";

const RECONNECT_MS = 1500;

export class Feed {
  // `watch`: says when the server can be asked. `isExtra`: the page works without the stream, and leaves it while hidden.
  constructor(api, watch, {isExtra = false} = {}) {
    this.api = api;
    this.watch = watch;
    this.isExtra = isExtra;
    this.run = new Run();
    this.isOpen = false;
    this.wake = () => {};
    this.leave = () => {};
    if (isExtra) document.addEventListener("visibilitychange", () => (document.hidden ? this.leave() : this.wake()));
  }

  async follow() {
    for (;;) {
      await this.watch.ready();
      const left = new AbortController();
      this.leave = () => left.abort();
      let needsKey = false;
      try {
        await this.api.events("stats/stream", {signal: left.signal, isExtra: this.isExtra, onEvent: (name, data) => this.take(name, data)});
        this.watch.suspect();
      } catch (error) {
        needsKey = [401, 403].includes(error.status);
        if (!error.status && !left.signal.aborted) this.watch.suspect();
      }
      this.isOpen = false;
      await new Promise((resolve) => {
        this.wake = resolve;
        if (!needsKey && !(this.isExtra && document.hidden)) setTimeout(resolve, RECONNECT_MS);
      });
    }
  }

  take(name, data) {
    if (name === "hello") this.greet(data);
    else if (name === "requests") this.run.addRequests(data);
    else if (name === "steps") this.run.addSteps(data);
    else if (name === "ended") this.run.addEnds(data);
    else if (name === "lost") this.run.lost += data.batches;
    else if (name === "blocks") {
      this.run.blocks = data;
      this.run.version += 1;
    }
  }

  // Starts a new run: after a restart the server numbers its requests from 0 again.
  greet(about) {
    this.run = new Run(about);
    this.isOpen = true;
  }
}
