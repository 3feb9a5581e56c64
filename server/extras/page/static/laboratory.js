// Laboratory: requests that this page starts, and the same requests under all policies. Clients run for at most a minute.

import {compared} from "./comparison.js";
import {byId, tell} from "./dom.js";
import {milliseconds} from "./words.js";

const [LAB_PROMPT, LONG_TOKENS] = [4000, 8];
const LOAD_MS = 60000;
const MAX_ARRIVALS = 256;
const [FIRST_ID, NUM_IDS] = [20, 200];
// The show: four streams, a long prompt among them, then the simulations. About twenty seconds.
const STREAMS = 4;
const [STREAM_PROMPT, STREAM_TOKENS] = [24, 400];
const SHOW_PROMPT = 1500;
const ALONE_S = 5;  // before the long prompt, and at most
const AFTER_S = 3;
const POLL_MS = 100;

export class Laboratory {
  constructor(api, {run}) {
    this.api = api;
    this.run = run;
    this.clients = new Set();
    this.deadline = 0;
    byId("long-prompt").addEventListener("click", () => tell("laboratory-words", () => this.sendLong()));
    byId("clients").addEventListener("input", () => this.setClients(Number(byId("clients").value)));
    byId("compare").addEventListener("click", () => tell("laboratory-words", () => this.compareAll()));
    byId("show-me").addEventListener("click", () => this.show());
    addEventListener("pagehide", () => this.setClients(0));
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

  async sendLong() {
    const length = Math.max(1, Math.min(LAB_PROMPT, (this.run().about.max_model_len ?? LAB_PROMPT) - LONG_TOKENS));
    const result = await this.result(await this.start(length, LONG_TOKENS));
    return `A prompt of ${length} tokens had its first token after ${milliseconds(result.timings.ttft_s)}. ` +
      "Its chunks filled the steps up to the budget, and the other streams went on beside them.";
  }

  setClients(count) {
    byId("clients").value = String(count);
    byId("clients-count").textContent = String(count);
    if (count && !this.clients.size) this.deadline = performance.now() + LOAD_MS;
    for (const client of [...this.clients].slice(count)) {
      client.isOver = true;
      this.clients.delete(client);
    }
    while (this.clients.size < count) {
      const client = {isOver: false};
      this.clients.add(client);
      tell("laboratory-words", () => this.work(client));
    }
  }

  async work(client) {
    while (!client.isOver && performance.now() < this.deadline) {
      try {
        await this.result(await this.start(16 + Math.floor(Math.random() * 240), 24 + Math.floor(Math.random() * 72)));
      } catch (error) {
        this.setClients(0);
        throw error;
      }
    }
    if (this.clients.has(client)) this.setClients(0);
    return this.clients.size ? `${this.clients.size} clients run.` : "The clients have stopped.";
  }

  async compareAll() {
    const known = [...this.run().requests.values()].filter((each) => each.arrival !== undefined && each.prompt).slice(-MAX_ARRIVALS);
    if (!known.length) return "No request has come yet that could be simulated; start some clients first.";
    byId("compare").setAttribute("aria-busy", "true");
    byId("laboratory-words").textContent = "Simulating …";
    try {
      await this.compare("comparison", known, (each) => (each.ended ? each.tokens : each.max - each.prompt));
    } finally {
      byId("compare").removeAttribute("aria-busy");
    }
    return `Simulated ${known.length} requests with all policies.`;
  }

  // Simulates these requests under all policies, and draws the outcome.
  async compare(id, tracks, numTokens) {
    const start = Math.min(...tracks.map((track) => track.arrival));
    const arrivals = tracks.map((track) => [track.arrival - start, track.prompt, Math.max(1, numTokens(track))]);
    const {parts, draw} = await compared(this.api, this.run().about, arrivals.sort(([one], [other]) => one - other));
    byId(id).replaceChildren(...parts);
    draw();
  }

  async show() {
    const ids = [];
    byId("show-me").disabled = true;
    byId("show-stage").hidden = false;
    byId("show-result").replaceChildren();
    scrollTo({top: 0});
    await tell("show-words", async () => {
      await this.stream(ids);
      byId("show-words").textContent = "3 of 3. The same five requests, simulated under all four policies …";
      await this.until(() => ids.every((id) => this.track(id)), 1);
      await this.compare("show-result", ids.map((id) => this.track(id)).filter(Boolean), (track) => track.tokens);
      return "3 of 3. The same five requests, simulated under all four policies:";
    }, "The show has ended early: ");
    await Promise.all(ids.map((id) => this.api.fetch(`result/${id}`, {method: "DELETE"}).catch(() => null)));
    byId("show-me").disabled = false;
  }

  // Runs the show's requests, and adds their ids.
  async stream(ids) {
    const {max_model_len: longest = SHOW_PROMPT, num_blocks: blocks, block_size: size} = this.run().about;
    const most = Math.min(longest, Math.floor(blocks * size / 2));
    const tokens = Math.max(8, Math.min(STREAM_TOKENS, longest - STREAM_PROMPT, Math.floor(blocks * size / (2 * STREAMS)) - STREAM_PROMPT));
    const length = Math.max(1, Math.min(SHOW_PROMPT, most - LONG_TOKENS));
    byId("show-words").textContent = "1 of 3. Four answers stream. Each column below is one step of the engine.";
    for (let count = 0; count < STREAMS; count += 1) ids.push(await this.start(STREAM_PROMPT, tokens));
    await this.until(() => ids.reduce((sum, id) => sum + (this.track(id)?.tokens ?? 0), 0) >= STREAMS * tokens / 4, ALONE_S);
    byId("show-words").textContent = `2 of 3. A prompt of ${length.toLocaleString("en")} tokens comes. Its chunks fill the steps, and the four go on beside it.`;
    ids.push(await this.start(length, LONG_TOKENS));
    await this.result(ids.at(-1));
    await this.until(() => this.track(ids[0])?.ended, AFTER_S);
  }

  track(id) {
    return [...this.run().requests.values()].find((track) => track.id === id);
  }

  async until(isReached, seconds) {
    const deadline = performance.now() + seconds * 1000;
    while (!isReached() && performance.now() < deadline) await new Promise((resolve) => { setTimeout(resolve, POLL_MS); });
  }
}
