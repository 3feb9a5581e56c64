"""The chat page shows hostile Markdown soon, in time that grows with the text. Needs node, whose DOM is a stand-in."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import splitfuse.server

STATIC = Path(splitfuse.server.__file__).parent / "extras/page/static"
NUM_CHARS = 100_000
TEXTS = {
    "5,000 columns": "|".join("a" * 5000) + "\n" + "|".join("-" * 5000) + ("\n" + "|".join("b" * 5000)) * 3,
    "empty cells": "|".join("a" * 5000) + "\n" + "|".join("-" * 5000) + "\n|" * 5000,
    "no divider": "a|b\n" + "-| " * (NUM_CHARS // 3) + "x",
    "spaces in a divider": "a|b\n" + " " * NUM_CHARS + "x",
    "dashes": "a|b\n" + "-" * NUM_CHARS + "x",
    **{
        repr(piece): piece * (NUM_CHARS // len(piece))
        for piece in (
            *("*", "**a", "_a_ ", "`", "`a", "``` \n", "[", "[a](", "![", "http://", "~~", "> ", "- ", "1. a\n", "# "),
            *("|", "|-", "a|b\n-|-\n", "- a\n  - b\n", "\\", "&<", "\n\n", "--- ", "[ ]", "~~~\n", "> > a\n", " \n"),
            *("$", "$a", "$$", "\\\\(", "\\\\[a", "***a", "<http://a", "$\\\\frac{", "$a$ ", "$x^"),
            *('"', "'a", "/*", "//", "0x", "1e", "def a ", "<!--", '<a b="', "${", "#a ", ") ", "{("),
        )
    },
    **{f"code {piece!r}": "```python\n" + piece * (NUM_CHARS // len(piece)) for piece in ('"', "'''", "#", "a(", "0")},
}
SCRIPT = """
const nothing = () => {};
const node = () => ({
  childNodes: [], style: {}, dataset: {}, classList: {add: nothing},
  append(...all) { this.childNodes.push(...all); },
  addEventListener: nothing, setAttribute: nothing, replaceChildren: nothing,
});
globalThis.document = {createElement: node, createElementNS: node, getElementById: node};
globalThis.window = globalThis;
const {MarkdownView} = await import(process.argv[1] + "/markdown.js");
const texts = JSON.parse((await import("node:fs")).readFileSync(0));
const took = {};
for (const [name, text] of Object.entries(texts)) {
  const start = process.cpuUsage().user;
  new MarkdownView().update(text);
  took[name] = (process.cpuUsage().user - start) / 1e6;
}
console.log(JSON.stringify(took));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_hostile_markdown_is_shown_soon() -> None:
    command = ["node", "--input-type=module", "-e", SCRIPT, str(STATIC)]
    done = subprocess.run(command, input=json.dumps(TEXTS), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    took = json.loads(done.stdout)
    assert {name: seconds for name, seconds in took.items() if seconds > 1} == {}
