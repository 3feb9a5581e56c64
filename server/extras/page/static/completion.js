// One answer as it streams into a message, and the server's figures about it. The server goes on without a reader: the
// message's `pending` names its answer, and the length before it, until all of it is here; `kept` names it from then on.

import {readEvents} from "./api.js";

export const CHAT = "v1/chat/completions";
const EXPLAIN_TRIES = 5;
const EXPLAIN_MS = 60;

export class Completion {
  constructor(api, message, {onChange, onBegun}) {
    this.api = api;
    this.message = message;
    this.onChange = onChange;
    this.onBegun = onBegun;
    this.stopped = new AbortController();
    this.seqId = null;
    this.usage = null;
    this.began = performance.now();
    this.first = null;  // ms, as the browser saw it
  }

  // Asks, and reads the whole answer. What goes wrong stands in the message's `error`. Returns false if the server is away.
  read(path, body) {
    const {message} = this;
    return this.follow(async () => {
      const response = await this.api.fetch(path, {method: "POST", signal: this.stopped.signal,
        body: {...body, stream: true, stream_options: {include_usage: true}, ...(path === CHAT ? {store: true} : {})}});
      this.seqId = response.headers.get("X-Seq-Id");
      if (this.seqId && path === CHAT) {
        message.pending = {id: this.seqId, length: message.content.length};
        this.onBegun();
      }
      return response;
    });
  }

  // Begins a fork of a kept answer, with `body` of POST /fork, and reads all of it.
  fork(body) {
    return this.follow(async () => {
      const {seq_id: id} = await this.api.json("fork", {method: "POST", signal: this.stopped.signal, body});
      this.message.pending = {id, length: this.message.content.length};
      this.onBegun();
      return this.pendingFromBegin();
    });
  }

  // Reads an answer that an earlier page began. What is here stays if the server has it no more.
  readAgain() {
    for (const name of ["error", "finish"]) delete this.message[name];
    return this.follow(() => this.pendingFromBegin());
  }

  async pendingFromBegin() {
    const {message} = this;
    const {id, length} = message.pending;
    this.seqId = id;
    const response = await this.api.fetch(`${CHAT}/${id}?stream=true`, {signal: this.stopped.signal, isExtra: true});
    message.content = message.content.slice(0, length);
    for (const name of ["reasoning", "thoughts", "thinkingMs", "tools"]) delete message[name];
    return response;
  }

  async follow(ask) {
    const {message} = this;
    let isThere = true;
    try {
      const response = await ask();
      let isWhole = false;
      await readEvents(response, (name, data) => {
        if (name === "end") isWhole = true;
        else this.take(data);
      });
      if (!isWhole && !message.error) throw new TypeError("the stream ended early");
    } catch (error) {
      message.finish = this.stopped.signal.aborted ? "stopped" : "cut";
      if (error.status === 404 && message.pending) this.seqId = null;  // the server has restarted, or forgotten it
      else if (error.status && !(message.pending && error.status > 501)) message.error = error.message;
      else if (!this.stopped.signal.aborted) {
        message.error = "The connection to the server was lost; this answer is not complete.";
        isThere = false;
      }
    }
    message.thinkingMs ??= message.reasoning ? performance.now() - this.began : undefined;
    message.stats = this.stats();
    if (isThere && this.seqId) await this.explain();
    this.onChange();
    return isThere;
  }

  stop() {
    this.stopped.abort();
  }

  // Lets the server stop and forget the answer, which this browser keeps; or keep one that is whole, so that it can fork.
  async end({isKept}) {
    const {pending, finish} = this.message;
    delete this.message.pending;
    if (!pending || !this.seqId) return;
    if (isKept && !["stopped", "cut"].includes(finish)) this.message.kept = pending;
    else await this.api.fetch(`result/${pending.id}`, {method: "DELETE", isExtra: true}).catch(() => null);
  }

  // Ends the reasoning; the answer goes on.
  stopThinking() {
    return this.api.json(`result/${this.seqId}/stop_thinking`, {method: "POST", isExtra: true});
  }

  take(data) {
    const {message} = this;
    if (data.error) message.error = data.error.message;
    if (data.usage) this.usage = data.usage;
    if (message.thoughts) message.thoughts = data.usage?.completion_tokens_details?.reasoning_tokens ?? message.thoughts;
    const choice = data.choices?.[0];
    if (!choice) return;
    const {content, reasoning_content: reasoning, tool_calls: calls} = choice.delta ?? {};
    if (content || reasoning || calls || choice.text) this.first ??= performance.now() - this.began;
    if (reasoning) {
      message.reasoning = (message.reasoning ?? "") + reasoning;
      message.thoughts = (message.thoughts ?? 0) + 1;  // about a token a piece; the usage says it exactly
    }
    if (content && message.reasoning) message.thinkingMs ??= performance.now() - this.began;
    message.content += content ?? choice.text ?? "";
    for (const call of calls ?? []) addCall(message, call);
    if (choice.finish_reason) message.finish = choice.finish_reason;
    this.onChange();
  }

  stats() {
    const {usage, first} = this;
    return {first: first === null ? null : first / 1000, seconds: (performance.now() - this.began) / 1000, tokens: usage?.completion_tokens ?? null,
      prompt: usage?.prompt_tokens ?? null, cached: usage?.prompt_tokens_details?.cached_tokens ?? 0};
  }

  // Takes the server's own times. The story stays with the message, so that "why?" works when the server has forgotten it.
  async explain() {
    const {message} = this;
    for (let left = EXPLAIN_TRIES; left > 0; left -= 1) {
      const found = await this.api.json(`result/${this.seqId}/explain`, {isExtra: true}).catch(() => null);
      if (!found) return;
      if (found.ttft_s !== null) Object.assign(message.stats, {first: found.ttft_s, seconds: found.e2e_s});
      message.explanation = found;
      if (this.stopped.signal.aborted || (found.status !== "running" && found.status !== "queued")) return;
      await new Promise((resolve) => { setTimeout(resolve, EXPLAIN_MS); });
    }
  }
}

function addCall(message, {index, id, function: {name, arguments: text} = {}}) {
  message.tools ??= [];
  const call = message.tools[index] ??= {id: "", name: "", arguments: ""};
  if (id) call.id = id;
  if (name) call.name += name;
  if (text) call.arguments += text;
}

// The line under an answer: parts of a sentence.
export function statParts({first, seconds, tokens, prompt, cached}) {
  const parts = [];
  if (first !== null) parts.push(`${first.toFixed(2)} s to the first word`);
  if (tokens > 1 && seconds > first) parts.push(`${rateOf((tokens - 1) / (seconds - first))} tokens/s`);
  if (prompt !== null) parts.push(`${cached} of ${prompt} prompt tokens from the cache`);
  return parts;
}

function rateOf(rate) {
  return rate < 10 ? rate.toFixed(1) : Math.round(rate).toLocaleString("en");
}
