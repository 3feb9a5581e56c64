// The show: four streams, a long prompt among them, then the same requests under all policies. About twenty seconds.

import {compared} from "./comparison.js";
import {byId} from "./dom.js";
import {randomPrompt} from "./laboratory.js";

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
    this.button = byId("show-me");
    this.stage = byId("show-stage");
    this.words = byId("show-words");
    this.button.addEventListener("click", () => this.play());
  }

  async play() {
    this.button.disabled = true;
    this.stage.hidden = false;
    byId("show-result").replaceChildren();
    scrollTo({top: 0});
    let ids = [];
    try {
      ids = await this.live();
      await this.compare(ids);
    } catch (error) {
      this.words.textContent = `The show has ended early: ${error.message}`;
    }
    await Promise.all(ids.map((id) => this.api.fetch(`result/${id}`, {method: "DELETE"}).catch(() => null)));
    this.button.disabled = false;
  }

  // Runs the requests, and returns their ids.
  async live() {
    const {max_model_len: longest = LONG_PROMPT, num_blocks: blocks, block_size: size} = this.run().about;
    const most = Math.min(longest, Math.floor(blocks * size / 2));
    const tokens = Math.max(8, Math.min(STREAM_TOKENS, longest - STREAM_PROMPT, Math.floor(blocks * size / (2 * STREAMS)) - STREAM_PROMPT));
    const length = Math.max(1, Math.min(LONG_PROMPT, most - LONG_TOKENS));
    this.words.textContent = "1 of 3. Four answers stream. Each column below is one step of the engine.";
    const streams = [];
    for (let count = 0; count < STREAMS; count += 1) streams.push(await this.send(STREAM_PROMPT, tokens));
    await this.until(() => this.tokensOf(streams) >= STREAMS * tokens / 4, ALONE_S);
    this.words.textContent = `2 of 3. A prompt of ${length.toLocaleString("en")} tokens comes. Its chunks fill the steps, and the four go on beside it.`;
    const long = await this.send(length, LONG_TOKENS);
    await this.api.json(`result/${long}?wait=30`);
    await this.until(() => this.track(streams[0])?.ended, AFTER_S);
    return [...streams, long];
  }

  async compare(ids) {
    this.words.textContent = "3 of 3. The same five requests, simulated under all four policies …";
    await this.until(() => ids.every((id) => this.track(id)), 1);
    const tracks = ids.map((id) => this.track(id)).filter(Boolean);
    const start = Math.min(...tracks.map((track) => track.arrival));
    const arrivals = tracks.map((track) => [track.arrival - start, track.prompt, Math.max(1, track.tokens)]);
    const {parts, draw} = await compared(this.api, this.run().about, arrivals.sort(([one], [other]) => one - other));
    byId("show-result").replaceChildren(...parts);
    draw();
    this.words.textContent = this.words.textContent.replace(" …", ":");
  }

  async send(length, tokens) {
    const body = {prompt: randomPrompt(length), max_tokens: tokens, ignore_eos: true, ttl_s: 120};
    return (await this.api.json("generate", {method: "POST", body})).seq_id;
  }

  track(id) {
    return [...this.run().requests.values()].find((track) => track.id === id);
  }

  tokensOf(ids) {
    return ids.reduce((sum, id) => sum + (this.track(id)?.tokens ?? 0), 0);
  }

  async until(isReached, seconds) {
    const deadline = performance.now() + seconds * 1000;
    while (!isReached() && performance.now() < deadline) await new Promise((resolve) => { setTimeout(resolve, POLL_MS); });
  }
}
