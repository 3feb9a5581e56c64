// One answer as it arrives. A reader can start again from its beginning while the server keeps it.

import {element} from "./dom.js";

const MAX_SHOWN = 200000;  // characters; of longer answers the last ones are shown
const RETRY_MS = 1000;

export class Answer {
  constructor(api, seqId, {onClosed}) {
    this.api = api;
    this.seqId = seqId;
    this.text = "";
    this.lastId = -1;
    this.isOver = false;
    this.isDirty = false;
    this.stopped = new AbortController();
    this.output = element("pre", {dir: "auto", tabIndex: 0, ariaLabel: "Answer", role: "region"});
    this.state = element("p", {className: "words", role: "status"}, "waiting");
    const close = element("button", {type: "button", onclick: () => { this.stop(); onClosed(this); }}, "Close");
    this.cancel = element("button", {type: "button", onclick: () => this.end()}, "Cancel");
    this.why = element("button", {type: "button"}, "Explain");
    this.card = element("article", {className: "stream"}, element("h3", {}, `${seqId.slice(0, 8)}…`), this.output, this.state,
      element("p", {className: "buttons"}, this.cancel, this.why, close));
  }

  async read() {
    while (!this.isOver && !this.stopped.signal.aborted) {
      try {
        const after = this.lastId >= 0 ? `?starting_after=${this.lastId}` : "";
        await this.api.events(`result/${this.seqId}/stream${after}`, {
          signal: this.stopped.signal, onEvent: (name, data, id) => this.take(name, data, id)});
      } catch (error) {
        if (this.stopped.signal.aborted) return;
        this.fail(error);
      }
      if (!this.isOver) await new Promise((resolve) => { setTimeout(resolve, RETRY_MS); });
    }
  }

  take(name, data, id) {
    this.lastId = Number(id);
    if (name === "token") {
      this.text += data.text;
      if (this.text.length > MAX_SHOWN * 1.5) this.text = `…${this.text.slice(-MAX_SHOWN)}`;
      this.state.textContent = "running";
      this.show();
    } else if (name === "done") {
      this.isOver = true;
      const {timings, usage} = data;
      this.state.textContent = `${data.finish_reason}: ${usage.completion_tokens} tokens, first after ` +
        `${Math.round(timings.ttft_s * 1000)} ms, then ${Math.round(timings.tokens_per_s)} per second` +
        (usage.cached_tokens ? `; ${usage.cached_tokens} prompt tokens were cached` : "");
    } else if (name === "error") {
      this.isOver = true;
      this.state.textContent = data.error.message;
    }
    if (this.isOver) this.cancel.disabled = true;
  }

  fail(error) {
    if (error.status === 404) {
      this.isOver = true;
      this.cancel.disabled = true;
      this.state.textContent = "this result is no longer kept";
    } else {
      this.state.textContent = `${error.message}; trying again`;
    }
  }

  // Draws at most once per frame, however many tokens arrive.
  show() {
    if (this.isDirty) return;
    this.isDirty = true;
    requestAnimationFrame(() => {
      this.isDirty = false;
      const isAtEnd = this.output.scrollTop + this.output.clientHeight >= this.output.scrollHeight - 4;
      this.output.textContent = this.text;
      if (isAtEnd) this.output.scrollTop = this.output.scrollHeight;
    });
  }

  async end() {
    this.isOver = true;
    this.cancel.disabled = true;
    this.stop();
    this.state.textContent = "cancelled";
    await this.api.fetch(`result/${this.seqId}`, {method: "DELETE"}).catch((error) => { this.state.textContent = error.message; });
  }

  stop() {
    this.stopped.abort();
  }
}
