// The show: four streams, a long prompt among them, and how long the streams stood still meanwhile. About twenty seconds.

import {byId, tell} from "./dom.js";
import {milliseconds} from "./words.js";

const [FIRST_ID, NUM_IDS] = [20, 200];
const STREAMS = 4;
const [STREAM_PROMPT, STREAM_TOKENS] = [24, 400];
const [LONG_PROMPT, LONG_TOKENS] = [1500, 8];
const ALONE_S = 5;  // before the long prompt, and at most
const AFTER_S = 3;
const POLL_MS = 100;

export class Show {
  constructor(api, {run}) {
    this.api = api;
    this.run = run;
    byId("show-me").addEventListener("click", () => this.play());
  }

  async play() {
    const ids = [];
    byId("show-me").disabled = true;
    byId("show-stage").hidden = false;
    scrollTo({top: 0});
    await tell("show-words", () => this.stream(ids), "The show has ended early: ");
    await Promise.all(ids.map((id) => this.api.fetch(`result/${id}`, {method: "DELETE"}).catch(() => null)));
    byId("show-me").disabled = false;
  }

  // Runs the requests, adds their ids, and returns the last sentence.
  async stream(ids) {
    const {max_model_len: longest = LONG_PROMPT, num_blocks: blocks, block_size: size} = this.run().about;
    const most = Math.min(longest, Math.floor(blocks * size / 2));
    const tokens = Math.max(8, Math.min(STREAM_TOKENS, longest - STREAM_PROMPT, Math.floor(blocks * size / (2 * STREAMS)) - STREAM_PROMPT));
    const length = Math.max(1, Math.min(LONG_PROMPT, most - LONG_TOKENS));
    const words = `A prompt of ${length.toLocaleString("en")} tokens`;
    byId("show-words").textContent = "1 of 3. Four answers stream. Each column below is one step of the engine.";
    for (let count = 0; count < STREAMS; count += 1) ids.push(await this.start(STREAM_PROMPT, tokens));
    await this.until(() => ids.reduce((sum, id) => sum + (this.track(id)?.tokens ?? 0), 0) >= STREAMS * tokens / 4, ALONE_S);
    byId("show-words").textContent = `2 of 3. ${words} comes. Its chunks fill the steps, and the four go on beside it.`;
    ids.push(await this.start(length, LONG_TOKENS));
    const {timings} = await this.result(ids.at(-1));
    await this.until(() => this.track(ids[0])?.ended, AFTER_S);
    const gap = Math.max(...ids.slice(0, STREAMS).map((id) => this.track(id)?.longestGap ?? 0));
    return `3 of 3. ${words} had its first token after ${milliseconds(timings.ttft_s)}. The longest pause of the four answers was ${milliseconds(gap)}.`;
  }

  // Starts a request, and returns its id. The tokens are random, so that no prefix is cached; the result expires soon.
  async start(length, maxTokens) {
    const prompt = Array.from({length}, () => FIRST_ID + Math.floor(Math.random() * NUM_IDS));
    const body = {prompt, max_tokens: maxTokens, ignore_eos: true, ttl_s: 120};
    return (await this.api.json("generate", {method: "POST", body})).seq_id;
  }

  async result(id) {
    for (;;) {
      const result = await this.api.json(`result/${id}?wait=30`);
      if (result.error) throw new Error(result.error.message);
      if (["completed", "cancelled"].includes(result.status)) return result;
    }
  }

  track(id) {
    return [...this.run().requests.values()].find((track) => track.id === id);
  }

  async until(isReached, seconds) {
    const deadline = performance.now() + seconds * 1000;
    while (!isReached() && performance.now() < deadline) await new Promise((resolve) => { setTimeout(resolve, POLL_MS); });
  }
}
