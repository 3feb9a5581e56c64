// A subset of Markdown to elements: headings, lists, tables, code, quotes. HTML stays text.

import {copyButton} from "./clipboard.js";
import {element} from "./dom.js";
import {colored} from "./highlight.js";
import {inlineNodes} from "./inline.js";

const MAX_MARKDOWN = 400000;  // characters; a longer text is shown as it is
const MAX_DEPTH = 8;
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s+|$)/;
const QUOTE = /^ {0,3}>\s?/;
const DIVIDER = /^(?=.*-)[\s|:-]+$/;

// Shows a text that grows: only its last blocks are made again.
export class MarkdownView {
  constructor() {
    this.element = element("div", {className: "prose", dir: "auto"});
    this.sources = [];
  }

  update(text) {
    const sources = text.length > MAX_MARKDOWN ? [text] : splitBlocks(text);
    let same = 0;
    while (same < sources.length && sources[same] === this.sources[same]) same += 1;
    while (this.element.childNodes.length > same) this.element.lastChild.remove();
    this.element.append(...sources.slice(same).map((source) => blockElement(source, 0)));
    this.sources = sources;
  }
}

// Returns the sources of the blocks, each of which `blockElement` shows.
function splitBlocks(text) {
  const lines = text.replaceAll("\r\n", "\n").split("\n");
  const sources = [];
  for (let at = 0; at < lines.length;) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const end = blockEnd(lines, at);
    sources.push(lines.slice(at, end).join("\n"));
    at = end;
  }
  return sources;
}

function blockEnd(lines, at) {
  const fence = FENCE.exec(lines[at]);
  if (fence) return fenceEnd(lines, at, fence[1]);
  if (HEADING.test(lines[at]) || RULE.test(lines[at])) return at + 1;
  if (ITEM.test(lines[at])) return listEnd(lines, at);
  const isQuote = QUOTE.test(lines[at]);
  const isTable = startsTable(lines, at);
  let end = at + 1;
  while (end < lines.length && lines[end].trim()) {
    if (isQuote ? !QUOTE.test(lines[end]) : isTable ? !lines[end].includes("|") : beginsBlock(lines, end)) break;
    end += 1;
  }
  return end;
}

function fenceEnd(lines, at, mark) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() !== mark) end += 1;
  return Math.min(lines.length, end + 1);
}

// A list goes on over empty lines while items or indented lines follow.
function listEnd(lines, at) {
  const ordered = isOrdered(lines[at]);
  const indent = indentOf(lines[at]);
  let end = at + 1;
  while (end < lines.length) {
    const line = lines[end];
    const next = line.trim() ? line : lines[end + 1] ?? "";
    if (!next.trim()) break;
    const deeper = indentOf(next) > indent;
    if (!deeper && ITEM.test(next) && isOrdered(next) !== ordered) break;
    if (!deeper && !ITEM.test(next) && (next !== line || beginsBlock(lines, end))) break;
    end += 1;
  }
  return end;
}

function beginsBlock(lines, at) {
  return [FENCE, HEADING, RULE, QUOTE].some((pattern) => pattern.test(lines[at])) || startsTable(lines, at) ||
    /^\s{0,3}([-*+]|1[.)])\s+\S/.test(lines[at]);
}

function startsTable(lines, at) {
  return lines[at].includes("|") && DIVIDER.test(lines[at + 1] ?? "") && lines[at + 1].includes("|");
}

function indentOf(line) {
  return /^\s*/.exec(line)[0].length;
}

function isOrdered(line) {
  return /\d/.test(ITEM.exec(line)[2]);
}

function blockElement(source, depth) {
  const lines = source.split("\n");
  const [first] = lines;
  if (source.length > MAX_MARKDOWN || depth > MAX_DEPTH) return element("p", {}, source);
  const fence = FENCE.exec(first);
  if (fence) return codeBlock(fence[2], lines.slice(1, lines.at(-1).trim() === fence[1] && lines.length > 1 ? -1 : undefined).join("\n"));
  const heading = HEADING.exec(first);
  if (heading) return element("h3", {className: `level-${heading[1].length}`}, ...inlineNodes(heading[2]));
  if (RULE.test(first)) return element("hr");
  if (ITEM.test(first)) return listElement(lines, depth);
  if (QUOTE.test(first)) return element("blockquote", {}, ...nested(lines.map((line) => line.replace(QUOTE, "")).join("\n"), depth));
  // At most some 50,000 cells.
  if (startsTable(lines, 0) && lines[1].length * lines.length < 1e5) return tableElement(lines);
  return element("p", {}, ...inlineNodes(source.trim()));
}

function nested(text, depth) {
  return splitBlocks(text).map((source) => blockElement(source, depth + 1));
}

function listElement(lines, depth) {
  const [, , mark] = ITEM.exec(lines[0]);
  const indent = indentOf(lines[0]);
  const items = [];
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && item[1].length <= indent + 1) items.push([line.slice(item[0].length)]);
    else items.at(-1).push(line.slice(Math.min(indentOf(line), indent + 2 + (mark.length > 1 ? 1 : 0))));
  }
  const list = element(/\d/.test(mark) ? "ol" : "ul", {}, ...items.map((item) => itemElement(item.join("\n"), depth)));
  if (/\d/.test(mark)) list.start = Number.parseInt(mark, 10);
  return list;
}

function itemElement(text, depth) {
  const task = /^\[([ xX])\]\s/.exec(text);
  const children = nested(task ? text.slice(task[0].length) : text, depth);
  const isTight = !/\n\s*\n/.test(text.trim());
  const parts = children.flatMap((child) => (isTight && child.tagName === "P" ? [...child.childNodes] : [child]));
  return element("li", {}, ...(task ? [task[1] === " " ? "☐ " : "☑ "] : []), ...parts);
}

function tableElement([head, divider, ...rows]) {
  const sides = cellsOf(divider).map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "middle" : "right") : ""));
  const row = (line, kind, cells = cellsOf(line)) => element("tr", {}, ...sides.map((side, index) =>
    element(kind, {className: side}, ...inlineNodes(cells[index] ?? ""))));
  return element("div", {className: "wide", tabIndex: 0, role: "region", ariaLabel: "Table"}, element("table", {},
    element("thead", {}, row(head, "th")), element("tbody", {}, ...rows.map((line) => row(line, "td")))));
}

function cellsOf(line) {
  return line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

export function codeBlock(language, code) {
  return element("div", {className: "code"},
    element("div", {className: "code-head"}, element("span", {}, language || "text"), copyButton(() => code, {label: "Copy code"})),
    element("pre", {tabIndex: 0, dir: "ltr", role: "region", ariaLabel: "Code"}, element("code", {}, ...colored(code, language))));
}
