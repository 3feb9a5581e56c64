// Colours of code: comments, strings, numbers and the commonest keywords, alike for all languages.

import {element} from "./dom.js";

const MAX_COLORED = 50000;  // characters
const HASH_COMMENTS = new Set(["python", "py", "sh", "bash", "shell", "zsh", "yaml", "yml", "toml", "ruby", "rb", "r", "perl", "make", "dockerfile", "ini"]);
const DASH_COMMENTS = new Set(["sql", "lua", "haskell", "hs", "ada"]);
const PLAIN = new Set(["", "text", "txt", "plain", "markdown", "md", "console"]);
const KEYWORDS = new Set(("and as async await begin bool break case catch class const continue def default delete do elif else end enum except export " +
  "false finally fn for from func function go if impl import in include insert int interface into is join lambda let match mut namespace new nil " +
  "none not null or package pass private public raise return select self static str struct super switch table then this throw true try " +
  "type update use using values var void where while with yield").split(" "));

export function colored(code, language) {
  const name = language.toLowerCase();
  if (code.length > MAX_COLORED || PLAIN.has(name)) return [code];
  const comment = HASH_COMMENTS.has(name) ? "#[^\\n]*" : DASH_COMMENTS.has(name) ? "--[^\\n]*" : "\\/\\/[^\\n]*|\\/\\*[^]*?(?:\\*\\/|$)|<!--[^]*?(?:-->|$)";
  const token = new RegExp(`(${comment})|("""[^]*?(?:"""|$)|"(?:[^"\\\\\\n]|\\\\.)*"?|'(?:[^'\\\\\\n]|\\\\.)*'?|\`(?:[^\`\\\\]|\\\\.)*\`?)|\\b(\\d[\\w.]*)|([A-Za-z_]\\w*)`, "g");
  const nodes = [];
  let at = 0;
  for (const match of code.matchAll(token)) {
    const kind = match[1] ? "comment" : match[2] ? "string" : match[3] ? "number" : KEYWORDS.has(match[4].toLowerCase()) ? "keyword" : null;
    if (!kind) continue;
    if (match.index > at) nodes.push(code.slice(at, match.index));
    nodes.push(element("span", {className: `code-${kind}`}, match[0]));
    at = match.index + match[0].length;
  }
  return [...nodes, code.slice(at)];
}
