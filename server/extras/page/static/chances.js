// The words of an answer with their chances. Each opens the likeliest words at its place, from which the answer can go on.

import {element} from "./dom.js";

export class Chances {
  // `onPick(index, word)`: the answer goes on with this word, a triple of text, chance and nothing, at its place.
  constructor(onPick) {
    this.onPick = onPick;
    this.text = element("p", {dir: "auto"});
    this.near = element("div", {className: "near", role: "group", hidden: true});
    this.element = element("details", {className: "chances", hidden: true, ontoggle: () => this.draw()}, element("summary", {}, "Words and their chances"), this.text, this.near);
  }

  // `words`: triples of text, chance, and pairs of text and chance that were likeliest.
  show(words = []) {
    if (this.words === words) return;
    this.words = words;
    this.element.hidden = !words.length;
    this.near.hidden = true;
    this.text.replaceChildren();
    this.draw();
  }

  // A long answer has thousands of words, so closed ones are not drawn.
  draw() {
    if (!this.element.open || this.text.firstChild) return;
    this.text.replaceChildren(...this.words.map(([text, chance], index) => {
      const button = element("button", {type: "button", className: "word", title: percent(chance), onclick: () => this.open(index)}, shown(text));
      button.style.setProperty("--doubt", `${Math.round(100 * (1 - chance))}%`);
      return button;
    }));
  }

  open(index) {
    const [text, chance, top] = this.words[index];
    this.near.hidden = false;
    this.near.ariaLabel = `Instead of ${shown(text)}`;
    const others = top.filter(([other]) => other !== text).map((pair) => element("button", {type: "button", onclick: () => this.onPick(index, [...pair, []])},
      `${shown(pair[0])} ${percent(pair[1])}`));
    this.near.replaceChildren(element("p", {}, `${shown(text)} had ${percent(chance)}. Go on from here with:`), ...others);
  }
}

function shown(text) {
  return text.replaceAll("\n", "⏎") || "∅";
}

function percent(chance) {
  return `${(100 * chance).toFixed(chance < 0.1 ? 1 : 0)} %`;
}
