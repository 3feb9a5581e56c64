// Laboratory: load from this page for at most a minute, and the same requests under another policy.

import {Cursor} from "./cursor.js";
import {byId, element, table} from "./dom.js";
import {percentile} from "./figures.js";
import {Run} from "./run.js";
import {Strip} from "./strip.js";
import {milliseconds} from "./words.js";

const LONG_PROMPT = 4000;
const LONG_OUTPUT = 8;
const LOAD_MS = 60000;
const MAX_ARRIVALS = 256;
const STEPS_AFTER = 25;  // steps shown after the longest one, in the compared strips
const [FIRST_ID, NUM_IDS] = [20, 200];

export class Laboratory {
  constructor(api, {run}) {
    this.api = api;
    this.run = run;
    this.clients = new Set();
    this.deadline = 0;
    byId("long-prompt").addEventListener("click", () => this.tell(() => this.sendLong()));
    byId("clients").addEventListener("input", () => this.setClients(Number(byId("clients").value)));
    byId("compare").addEventListener("click", () => this.tell(() => this.compare(byId("policy").value)));
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
    const longest = this.run().about.max_model_len ?? LONG_PROMPT;
    const length = Math.max(1, Math.min(LONG_PROMPT, longest - LONG_OUTPUT));
    const result = await this.generate(length, LONG_OUTPUT);
    return `A prompt of ${length} tokens had its first token after ${milliseconds(result.timings.ttft_s)}. ` +
      "Look at the strip: its chunks filled the steps up to the budget, and the other streams went on beside them.";
  }

  // Sends random tokens, so that no prefix is cached. The result expires soon.
  async generate(length, maxTokens) {
    const prompt = Array.from({length}, () => FIRST_ID + Math.floor(Math.random() * NUM_IDS));
    const body = {prompt, max_tokens: maxTokens, ignore_eos: true, ttl_s: 60};
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

  async compare(policy) {
    const run = this.run();
    const arrivals = arrivalsOf(run);
    if (!arrivals.length) return "No request has come yet that could be simulated; start some clients first.";
    const policies = [run.about.batching_policy, policy];
    const answer = await this.api.json("stats/simulate", {method: "POST", body: {policies, arrivals}});
    const shown = answer.runs.map((made) => simulatedRun(run, made, arrivals));
    byId("comparison").replaceChildren(comparison(shown), comparedStrips(shown));
    for (const {run: each, canvas, words} of shown) new Strip(canvas, words, aroundLongest(each)).draw(each);
    return `Simulated ${arrivals.length} requests with ${policies.join(" and ")}.`;
  }
}

// The steps around the longest one, where the policies differ.
function aroundLongest(run) {
  const seconds = run.steps.map((record) => record.end - record.start);
  const cursor = new Cursor();
  cursor.pause(run, true);
  cursor.scroll(run, run.first + seconds.indexOf(Math.max(...seconds)) + STEPS_AFTER - run.count);
  return cursor;
}

function arrivalsOf(run) {
  const known = [...run.requests.values()].filter((each) => each.arrival !== undefined && each.prompt).slice(-MAX_ARRIVALS);
  const start = Math.min(...known.map((each) => each.arrival));
  known.sort((one, other) => one.arrival - other.arrival);
  return known.map((each) => [each.arrival - start, each.prompt, Math.max(1, each.ended ? each.tokens : each.max - each.prompt)]);
}

function simulatedRun(live, {policy, steps}, arrivals) {
  const run = new Run({...live.about, batching_policy: policy});
  run.addRequests(arrivals.map(([arrival, prompt], number) => ({number, arrival, prompt})));
  run.addSteps(steps);
  return {run, policy, canvas: element("canvas", {role: "img", ariaLabel: `Steps with ${policy}`}), words: element("p", {hidden: true})};
}

function comparison(shown) {
  const rows = shown.map(({run, policy}) => {
    const gaps = [...run.gaps].sort((a, b) => a - b);
    const firsts = [...run.ttfts].sort((a, b) => a - b);
    const figures = [[gaps, 0.5], [gaps, 0.99], [firsts, 0.5], [firsts, 0.95]].map(([values, share]) => {
      const value = percentile(values, share);
      return value === null ? "–" : milliseconds(value);
    });
    return [policy, ...figures];
  });
  return table(["simulated policy", "gap, median", "gap, 99 %", "first token, median", "first token, 95 %"], rows);
}

function comparedStrips(shown) {
  return element("div", {className: "compared"}, ...shown.map(({policy, canvas}) =>
    element("figure", {}, canvas, element("figcaption", {}, `${policy}, simulated, around its longest step`))));
}
