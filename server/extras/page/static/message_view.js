// One message of a chat as elements, and the actions below it.

import {branchTree} from "./branch_tree.js";
import {Chances} from "./chances.js";
import {copyButton} from "./clipboard.js";
import {statParts} from "./completion.js";
import {element} from "./dom.js";
import {glyph} from "./icons.js";
import {MarkdownView, codeBlock} from "./markdown.js";

const ENDS = ["stopped", "length"];  // each has words of its own

export class MessageView {
  // `actions`: edit(node), retry(node), show(node), explain(node), words(node), goOn(node, at, word), resume(node), answerCalls(node, texts).
  constructor(node, actions) {
    this.node = node;
    this.actions = actions;
    this.prose = new MarkdownView();
    this.enough = element("button", {type: "button", className: "link", onclick: () => actions.stopThinking(node)}, "Stop thinking");
    this.fold = element("details", {className: "reasoning", hidden: true},
      element("summary", {}, element("span"), this.enough), element("div", {className: "prose", dir: "auto"}));
    this.chances = new Chances({read: () => actions.words(node), onPick: (at, word) => actions.goOn(node, at, word)});
    this.calls = element("div", {className: "calls"});
    this.foot = element("div", {className: "foot"});
    this.error = element("p", {className: "error", role: "alert", hidden: true});
    this.card = element("article", {className: `message ${node.role}`, ariaLabel: {user: "You", assistant: "Answer", tool: "Result of a tool"}[node.role]},
      ...this.parts());
  }

  parts() {
    const {node} = this;
    if (node.role === "assistant") return [element("h2", {className: "unseen"}, "Answer"), this.fold, this.prose.element, this.chances.element, this.calls, this.error, this.foot];
    if (node.role === "tool") return [element("details", {className: "call"}, element("summary", {}, `Result for ${node.name || node.call}`), codeBlock("", node.content))];
    const files = (node.files ?? []).map(({name, text}) => element("details", {className: "file"}, element("summary", {}, glyph("file"), name), codeBlock("", text)));
    return [...files, element("div", {className: "bubble", dir: "auto", hidden: !node.content}, node.content), this.foot];
  }

  // Shows the message as it is now. `isRunning`: more of it comes.
  update({siblings, isRunning}) {
    const {node} = this;
    this.card.classList.toggle("running", isRunning);
    if (node.role === "assistant") {
      this.showReasoning(isRunning);
      this.prose.update(node.content);
      if (!isRunning) this.chances.show(node.kept?.id);
      this.showCalls(isRunning);
      this.error.hidden = !node.error;
      this.error.textContent = node.error ?? "";
    }
    if (node.role !== "tool") this.showFoot(siblings, isRunning);
  }

  showReasoning(isRunning) {
    const {reasoning, thinkingMs, thoughts, content} = this.node;
    this.fold.hidden = !reasoning;
    if (!reasoning) return;
    const isThinking = isRunning && !content && thinkingMs === undefined;
    const words = isThinking ? "Thinking …" : `Thought for ${Math.max(0.1, (thinkingMs ?? 0) / 1000).toFixed(1)} s`;
    this.fold.firstChild.firstChild.textContent = thoughts ? `${words} ${thoughts} tokens ` : words;
    this.enough.hidden = !isThinking;
    this.fold.lastChild.textContent = reasoning;
  }

  showCalls(isRunning) {
    const {tools = []} = this.node;
    const key = JSON.stringify([tools, isRunning]);
    if (this.calls.dataset.key === key || !tools.length) return;
    this.calls.dataset.key = key;
    this.calls.replaceChildren(...tools.map((call) => element("div", {className: "call"},
      element("p", {}, glyph("gear"), "Calls ", element("b", {}, call.name || "a tool")), codeBlock("json", pretty(call.arguments)))));
    if (!isRunning && this.actions.isLast(this.node)) this.calls.append(this.resultsForm(tools));
  }

  // The browser runs no tool: a person says what came out.
  resultsForm(tools) {
    const areas = tools.map((call) => element("textarea", {rows: 2, ariaLabel: `Result of ${call.name}`, placeholder: `Result of ${call.name}`}));
    const form = element("form", {}, ...areas, element("button", {}, "Send the results"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.actions.answerCalls(this.node, areas.map((area) => area.value));
    });
    return form;
  }

  showFoot(siblings, isRunning) {
    const {node, actions} = this;
    const key = JSON.stringify([siblings.map((other) => other.id), isRunning, node.stats, node.finish, Boolean(node.explanation), isCut(node), actions.isLast(node)]);
    if (this.foot.dataset.key === key) return;
    this.foot.dataset.key = key;
    if (isRunning) {
      this.foot.replaceChildren();
      return;
    }
    const act = (name, label, call) => element("button", {type: "button", className: "plain icon", title: label, ariaLabel: label, onclick: call}, glyph(name));
    const buttons = [copyButton(() => node.content, {label: "Copy message"})];
    if (node.role === "user") buttons.push(act("edit", "Edit", () => actions.edit(node)));
    else buttons.push(act("again", "Answer again", () => actions.retry(node)));
    if (isCut(node) && actions.isLast(node)) buttons.push(element("button", {type: "button", className: "plain", onclick: () => actions.resume(node)}, "Go on"));
    this.foot.replaceChildren(...this.statLine(), element("div", {className: "actions"}, ...buttons, ...branches(node, siblings, act, actions)), ...branchTree(node, siblings, actions.show));
  }

  statLine() {
    const {node, actions} = this;
    if (node.role !== "assistant" || (!node.stats && !isCut(node))) return [];
    const parts = node.stats ? statParts(node.stats) : [];
    if (node.finish === "cut" || (isCut(node) && !ENDS.includes(node.finish))) parts.unshift("cut off");
    if (node.finish === "stopped") parts.unshift("stopped");
    if (node.finish === "length") parts.unshift("cut at the limit of tokens");
    const line = element("p", {className: "stats"}, parts.join(", "));
    if (node.explanation) line.append(" · ", element("button", {type: "button", className: "link", ariaLabel: "Why? Explain where the time went", onclick: () => actions.explain(node)}, "why?"));
    return [line];
  }
}

// True if the answer ended before its end, and its own words can begin a prompt.
function isCut({role, content, finish, error, stats, reasoning, tools, pending}) {
  const hasEnded = stats || error;  // a page that was closed wrote neither
  return role === "assistant" && Boolean(content) && !pending && !reasoning && !tools?.length && (!hasEnded || finish === "cut" || ENDS.includes(finish));
}

function branches(node, siblings, act, actions) {
  if (siblings.length < 2) return [];
  const at = siblings.indexOf(node);
  const step = (name, label, other) => Object.assign(act(name, label, () => actions.show(other)), {disabled: !other});
  return [step("back", "Earlier version", siblings[at - 1]), element("span", {className: "count"}, `${at + 1}/${siblings.length}`),
    step("forward", "Later version", siblings[at + 1])];
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
