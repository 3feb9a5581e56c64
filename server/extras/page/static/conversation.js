// One chat: a tree of messages, and the branch that is shown. An edit or another answer is one more branch.

import {CHAT} from "./completion.js";

const MAX_TITLE = 60;
const PLAIN_TOKENS = 200;  // of a text that goes on: a base model ends none

export class Conversation {
  constructor(chat) {
    this.chat = chat;
  }

  static fresh(system) {
    const now = Date.now();
    return new Conversation({id: randomId(), title: "", system, created: now, updated: now, nodes: [], leaf: null});
  }

  get isEmpty() {
    return !this.chat.nodes.length;
  }

  node(id) {
    return this.chat.nodes.find((node) => node.id === id) ?? null;
  }

  // The messages of the shown branch, from the first on.
  get path() {
    const path = [];
    for (let node = this.node(this.chat.leaf); node; node = this.node(node.parent)) path.unshift(node);
    return path;
  }

  siblings(node) {
    return this.chat.nodes.filter((other) => other.parent === node.parent && other.role === node.role);
  }

  add(parent, fields) {
    const node = {id: randomId(), parent, content: "", time: Date.now(), ...fields};
    this.chat.nodes.push(node);
    this.chat.leaf = node.id;
    this.chat.updated = node.time;
    if (!this.chat.title && node.role === "user") this.chat.title = titleOf(node);
    return node;
  }

  // Adds a branch that leaves an answer at a word, with this one in its place.
  fork({id, parent, content, kept}, at, text) {
    return this.add(parent, {role: "assistant", content: content.slice(0, kept.length), fork: {from: id, at, text}});
  }

  // Shows another branch, down to its newest message.
  show(node) {
    let leaf = node;
    for (let child = node; child; child = this.chat.nodes.findLast((other) => other.parent === child.id)) leaf = child;
    this.chat.leaf = leaf.id;
  }

  // The path and the body of the request for an answer, which may have begun.
  question(message, {isPlain, settings}) {
    if (isPlain) {
      const {tools, ...body} = {max_tokens: PLAIN_TOKENS, ...settings};
      return ["v1/completions", {...body, prompt: this.text(message)}];
    }
    const {parent, content} = message;
    const begun = content ? [{role: "assistant", content}] : [];
    const more = content ? {add_generation_prompt: false, continue_final_message: true} : {};
    return [CHAT, {messages: [...this.messages(parent), ...begun], ...more, ...settings}];
  }

  // The branch down to a message as one text, which a model without a chat template continues.
  text(node) {
    return `${node.parent ? this.text(this.node(node.parent)) : ""}${node.role === "user" && node.parent ? "\n" : ""}${withFiles(node)}`;
  }

  // The branch above a message, as the API takes it.
  messages(parent) {
    const path = [];
    for (let node = this.node(parent); node; node = this.node(node.parent)) path.unshift(messageOf(node));
    return this.chat.system.trim() ? [{role: "system", content: this.chat.system}, ...path] : path;
  }
}

function messageOf(node) {
  if (node.role === "tool") return {role: "tool", tool_call_id: node.call, content: node.content};
  if (node.role === "user") return {role: "user", content: withFiles(node)};
  const calls = (node.tools ?? []).map(({id, name, arguments: text}) => ({id, type: "function", function: {name, arguments: text}}));
  return {role: "assistant", content: node.content, ...(calls.length ? {tool_calls: calls} : {})};
}

function withFiles({content, files = []}) {
  return [...files.map(({name, text}) => `File ${name}:\n\`\`\`\n${text}\n\`\`\``), content].filter(Boolean).join("\n\n");
}

function titleOf(node) {
  const line = (node.content || node.files?.[0]?.name || "").trim().split("\n")[0];
  return line.length > MAX_TITLE ? `${line.slice(0, MAX_TITLE - 1)}…` : line;
}

export function randomId() {
  return [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
