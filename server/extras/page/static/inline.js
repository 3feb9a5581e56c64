// Inline Markdown to nodes: code, emphasis, links to web pages and mail. Text never becomes markup.

import {element} from "./dom.js";
import {mathNode} from "./math.js";

const MAX_INLINE = 20000;  // characters; a longer paragraph is shown as it is
const MAX_NESTING = 6;
const LINK = /!?\[((?:[^[\]\\\n]|\\.){0,500})\]\(\s*<?([^\s<>()]{1,2000})>?(?:\s+"[^"\n]{0,500}")?\s*\)/y;
const ADDRESS = /https?:\/\/[^\s<>"'`]{1,2000}/y;
const MATH = [  // opening, the whole span, display
  ["$$", /\$\$([^$]{1,4000})\$\$/y, true],
  ["\\[", /\\\[([^]{1,4000}?)\\\]/y, true],
  ["\\(", /\\\(([^]{1,4000}?)\\\)/y, false],
  ["$", /\$(?!\s)([^$\n]{0,1000}[^$\s\\])\$(?!\d)/y, false],  // not "$5 and $10"
];
const EMPHASIS = {"*": "em", "**": "strong", "_": "em", "__": "strong", "~~": "del"};
const SAFE = new Set(["http:", "https:", "mailto:"]);
const WORD = /[\p{L}\p{N}]/u;

export function inlineNodes(text, depth = 0) {
  if (text.length > MAX_INLINE || depth > MAX_NESTING) return [text];
  const nodes = [];
  let plain = "";
  let at = 0;
  const push = (node, length) => {
    if (plain) nodes.push(plain);
    plain = "";
    nodes.push(node);
    at += length;
  };
  while (at < text.length) {
    const found = tokenAt(text, at, depth);
    if (found) push(found.node, found.length);
    else if (text[at] === "\\" && /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "")) {
      plain += text[at + 1];
      at += 2;
    } else {
      plain += text[at];
      at += 1;
    }
  }
  if (plain) nodes.push(plain);
  return nodes;
}

function tokenAt(text, at, depth) {
  const character = text[at];
  if (character === "$" || character === "\\") return mathAt(text, at);
  if (character === "<") return bracketedAt(text, at);
  if (character === "`") return codeAt(text, at);
  if (character === "[" || (character === "!" && text[at + 1] === "[")) return linkAt(text, at, depth);
  if (character === "h" && !WORD.test(text[at - 1] ?? " ")) return addressAt(text, at);
  if (character === "\n") return {node: element("br"), length: 1};
  if (character === "*" || character === "_" || character === "~") return emphasisAt(text, at, depth);
  return null;
}

// What is no formula of the subset stays as it was written, with its delimiters.
function mathAt(text, at) {
  const [, pattern, isDisplay] = MATH.find(([opening]) => text.startsWith(opening, at)) ?? [];
  if (!pattern) return null;
  pattern.lastIndex = at;
  const match = pattern.exec(text);
  if (!match) return null;
  return {node: mathNode(match[1], isDisplay) ?? element("code", {}, match[0]), length: match[0].length};
}

function bracketedAt(text, at) {
  const found = addressAt(text, at + 1);
  return found && text[at + 1 + found.length] === ">" ? {...found, length: found.length + 2} : null;
}

function codeAt(text, at) {
  const ticks = /^`+/.exec(text.slice(at, at + 16))[0];
  const end = text.indexOf(ticks, at + ticks.length);
  if (end < 0) return null;
  return {node: element("code", {}, text.slice(at + ticks.length, end).trim()), length: end + ticks.length - at};
}

function linkAt(text, at, depth) {
  LINK.lastIndex = at;
  const match = LINK.exec(text);
  if (!match) return null;
  const [whole, label, address] = match;
  const node = safeLink(address, whole[0] === "!" ? [label || address] : inlineNodes(label, depth + 1));
  return node && {node, length: whole.length};
}

function addressAt(text, at) {
  ADDRESS.lastIndex = at;
  const match = ADDRESS.exec(text);
  if (!match) return null;
  const address = match[0].replace(/[.,;:!?)\]}*_~]+$/, "");
  const node = safeLink(address, [address]);
  return node && {node, length: address.length};
}

function safeLink(address, children) {
  if (!URL.canParse(address) || !SAFE.has(new URL(address).protocol)) return null;
  return element("a", {href: address, target: "_blank", rel: "noopener noreferrer nofollow"}, ...children);
}

function emphasisAt(text, at, depth) {
  if (/^\*\*\*[^\s*]/.test(text.slice(at, at + 4))) {
    const end = text.indexOf("***", at + 4);
    if (end > 0 && end - at < MAX_INLINE && !/\s/.test(text[end - 1])) {
      const inner = element("em", {}, ...inlineNodes(text.slice(at + 3, end), depth + 1));
      return {node: element("strong", {}, inner), length: end + 3 - at};
    }
  }
  const mark = [text.slice(at, at + 2), text[at]].find((one) => one in EMPHASIS && text.startsWith(one, at));
  if (!mark || /\s|^$/.test(text[at + mark.length] ?? "")) return null;
  if (mark[0] === "_" && WORD.test(text[at - 1] ?? " ")) return null;
  const end = closing(text, at + mark.length, mark);
  if (end < 0) return null;
  const inner = text.slice(at + mark.length, end);
  return {node: element(EMPHASIS[mark], {}, ...inlineNodes(inner, depth + 1)), length: inner.length + 2 * mark.length};
}

function closing(text, from, mark) {
  for (let end = text.indexOf(mark, from + 1); end >= 0; end = text.indexOf(mark, end + 1)) {
    const after = text[end + mark.length] ?? " ";
    if (mark.length === 1 && (after === mark || text[end - 1] === mark)) continue;
    if (/\s/.test(text[end - 1]) || (mark[0] === "_" && WORD.test(after))) continue;
    return end;
  }
  return -1;
}
