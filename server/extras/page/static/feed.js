// Stream of steps, and the run that grows from it. Reconnects while the page is open.

import {Run} from "./run.js";

const RECONNECT_MS = 1500;
const OWN_ONLY = "This key may not watch other keys' requests: you see your own ones alone, and no blocks. An admin key sees all.";

export class Feed {
  constructor(api, {onAbout, onState}) {
    this.api = api;
    this.onAbout = onAbout;
    this.onState = onState;
    this.run = new Run();
    this.wake = () => {};
  }

  async follow() {
    for (;;) {
      try {
        await this.api.events("stats/stream", {onEvent: (name, data) => this.take(name, data)});
        this.onState("The stream of steps has ended; connecting again …");
      } catch (error) {
        this.onState(`${error.message} Connecting again …`);
      }
      await new Promise((resolve) => {
        this.wake = resolve;
        setTimeout(resolve, RECONNECT_MS);
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
    this.onState(about.watches === "own" ? OWN_ONLY : "");
    this.onAbout(`${about.model}: policy ${about.batching_policy}, ${about.budget} tokens a step, ` +
      `${about.max_num_seqs} requests at once, ${about.num_blocks} blocks of ${about.block_size}`);
  }
}
