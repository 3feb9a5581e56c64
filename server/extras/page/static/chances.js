// The words of an answer with their chances. Each opens the likeliest words at its place, from which the answer can go on.

import {element} from "./dom.js";

export class Chances {
  // `read()`: the answer of GET /result/{seq_id}/tokens. `onPick(at, word)`: the answer goes on with this word at a place.
  constructor({read, onPick}) {
    Object.assign(this, {read, onPick});
    this.text = element("p", {dir: "auto"});
    this.near = element("div", {className: "near", role: "group"});
    this.element = element("details", {className: "chances", hidden: true, ontoggle: () => this.draw()}, element("summary", {}, "Words and their chances"), this.text, this.near);
  }

  // `id`: of the answer that the server keeps, if it does.
  show(id) {
    if (this.id === id) return;
    this.id = id;
    this.element.hidden = !id;
    this.text.replaceChildren();
    this.near.replaceChildren();
    this.draw();
  }

  // The server computes them when they are opened, in one pass over the answer.
  async draw() {
    if (!this.id || !this.element.open || this.text.firstChild) return;
    try {
      const {tokens} = await this.read();
      this.text.replaceChildren(...tokens.map((word, at) => this.button(word, at)));
    } catch (error) {
      this.near.replaceChildren(element("p", {role: "alert"}, error.message));
    }
  }

  button(word, at) {
    const button = element("button", {type: "button", className: "word", title: chance(word), onclick: () => this.open(word, at)}, shown(word.text));
    button.style.setProperty("--doubt", `${Math.round(100 * (1 - Math.exp(word.logprob)))}%`);
    return button;
  }

  open(word, at) {
    const others = word.top.filter(({token_id: id}) => id !== word.token_id);
    this.near.ariaLabel = `Instead of ${shown(word.text)}`;
    this.near.replaceChildren(element("p", {}, `${shown(word.text)} had ${chance(word)}, number ${word.rank}. Go on from here with:`),
      ...others.map((other) => element("button", {type: "button", onclick: () => this.onPick(at, other)}, `${shown(other.text)} ${chance(other)}`)));
  }
}

export function shown(text) {
  return text?.replaceAll("\n", "⏎") || "∅";
}

function chance({logprob}) {
  const percent = 100 * Math.exp(logprob);
  return `${percent.toFixed(percent < 10 ? 1 : 0)} %`;
}
