// Laboratory: load from this page for at most a minute, and the same requests under all policies.

import {compared} from "./comparison.js";
import {byId} from "./dom.js";
import {milliseconds} from "./words.js";

const [LAB_PROMPT, LAB_OUTPUT] = [4000, 8];
const LOAD_MS = 60000;
const MAX_ARRIVALS = 256;
const [FIRST_ID, NUM_IDS] = [20, 200];

export class Laboratory {
  constructor(api, {run}) {
    this.api = api;
    this.run = run;
    this.clients = new Set();
    this.deadline = 0;
    byId("long-prompt").addEventListener("click", () => this.tell(() => this.sendLong()));
    byId("clients").addEventListener("input", () => this.setClients(Number(byId("clients").value)));
    byId("compare").addEventListener("click", () => this.tell(() => this.compare()));
    addEventListener("pagehide", () => this.setClients(0));
  }

  async tell(action) {
    const words = byId("laboratory-words");
    try {
      words.textContent = await action();
    } catch (error) {
      words.textContent = error.message;
    }
  }

  async sendLong() {
    const longest = this.run().about.max_model_len ?? LAB_PROMPT;
    const length = Math.max(1, Math.min(LAB_PROMPT, longest - LAB_OUTPUT));
    const result = await this.generate(length, LAB_OUTPUT);
    return `A prompt of ${length} tokens had its first token after ${milliseconds(result.timings.ttft_s)}. ` +
      "Its chunks filled the steps up to the budget, and the other streams went on beside them.";
  }

  // The result expires soon.
  async generate(length, maxTokens) {
    const body = {prompt: randomPrompt(length), max_tokens: maxTokens, ignore_eos: true, ttl_s: 60};
    const {seq_id: seqId} = await this.api.json("generate", {method: "POST", body});
    for (;;) {
      const result = await this.api.json(`result/${seqId}?wait=30`);
      if (result.error) throw new Error(result.error.message);
      if (["completed", "cancelled"].includes(result.status)) return result;
    }
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
      this.tell(() => this.work(client));
    }
  }

  async work(client) {
    while (!client.isOver && performance.now() < this.deadline) {
      try {
        await this.generate(16 + Math.floor(Math.random() * 240), 24 + Math.floor(Math.random() * 72));
      } catch (error) {
        this.setClients(0);
        throw error;
      }
    }
    if (this.clients.has(client)) this.setClients(0);
    return this.clients.size ? `${this.clients.size} clients run.` : "The clients have stopped.";
  }

  async compare() {
    const run = this.run();
    const arrivals = arrivalsOf(run);
    if (!arrivals.length) return "No request has come yet that could be simulated; start some clients first.";
    byId("compare").setAttribute("aria-busy", "true");
    byId("laboratory-words").textContent = "Simulating …";
    try {
      const {parts, draw} = await compared(this.api, run.about, arrivals);
      byId("comparison").replaceChildren(...parts);
      draw();
    } finally {
      byId("compare").removeAttribute("aria-busy");
    }
    return `Simulated ${arrivals.length} requests with all policies.`;
  }
}

// Random tokens, so that no prefix is cached.
export function randomPrompt(length) {
  return Array.from({length}, () => FIRST_ID + Math.floor(Math.random() * NUM_IDS));
}

function arrivalsOf(run) {
  const known = [...run.requests.values()].filter((each) => each.arrival !== undefined && each.prompt).slice(-MAX_ARRIVALS);
  const start = Math.min(...known.map((each) => each.arrival));
  known.sort((one, other) => one.arrival - other.arrival);
  return known.map((each) => [each.arrival - start, each.prompt, Math.max(1, each.ended ? each.tokens : each.max - each.prompt)]);
}
