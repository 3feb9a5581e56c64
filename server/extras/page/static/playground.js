// Playground: prompts and answers side by side. The answers' ids are in the URL, so a reload finds them again.

import {Answer} from "./answer.js";
import {openDialog, showText} from "./dialog.js";
import {byId, element} from "./dom.js";
import {asCurl, asOpenai, asPython} from "./snippets.js";

const NUMBERS = ["max_tokens", "temperature", "top_p", "top_k", "min_p", "seed"];

export class Playground {
  constructor(api, {model, explain}) {
    this.api = api;
    this.model = model;
    this.explain = explain;
    this.answers = [];
    this.form = byId("prompt-form");
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.send().catch((error) => openDialog("It was not sent", element("p", {}, error.message)));
    });
    byId("clear").addEventListener("click", () => [...this.answers].forEach((answer) => this.close(answer)));
    for (const button of this.form.querySelectorAll("[data-copy]")) {
      button.addEventListener("click", () => this.copy(button.dataset.copy));
    }
    byId("prompt").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.form.requestSubmit();
    });
  }

  body() {
    const fields = this.form.elements;
    const body = {prompt: fields.prompt.value};
    for (const name of NUMBERS) {
      if (fields[name].value !== "") body[name] = Number(fields[name].value);
    }
    if (fields.stop.value !== "") body.stop = [fields.stop.value];
    return body;
  }

  async send() {
    const body = this.body();
    const copies = Number(this.form.elements.copies.value) || 1;
    for (let copy = 0; copy < copies; copy += 1) {
      const {seq_id: seqId} = await this.api.json("generate", {method: "POST", body});
      this.open(seqId);
    }
  }

  open(seqId) {
    const answer = new Answer(this.api, seqId, {onClosed: (closed) => this.close(closed)});
    answer.why.addEventListener("click", () => this.explain(seqId));
    this.answers.unshift(answer);
    byId("streams").prepend(answer.card);
    this.remember();
    answer.read();
  }

  close(answer) {
    answer.stop();
    answer.card.remove();
    this.answers = this.answers.filter((other) => other !== answer);
    this.remember();
  }

  remember() {
    const ids = this.answers.map((answer) => answer.seqId).reverse();
    history.replaceState(null, "", ids.length ? `#ids=${ids.join(",")}` : location.pathname);
  }

  // Reopens the answers after a reload.
  attach() {
    const match = /^#ids=([\w,-]+)$/.exec(location.hash);
    for (const seqId of match?.[1].split(",") ?? []) this.open(seqId);
  }

  copy(kind) {
    const origin = new URL(".", location.href).href;
    const body = {...this.body(), stream: true};
    const texts = {
      curl: () => asCurl(origin, "generate", body, this.api.key),
      python: () => asPython(origin, body),
      openai: () => asOpenai(origin, this.model(), body),
    };
    showText(`As ${kind}`, texts[kind]());
  }
}
