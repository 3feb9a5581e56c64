"""Formulas, emphasis and links in answers: what is typeset, and what stays as it was written. Needs node."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from tables import table

import splitfuse.server

STATIC = Path(splitfuse.server.__file__).parent / "extras/page/static"
SCRIPT = r"""
class Node {
  constructor(name) { this.name = name; this.all = []; this.attributes = {}; }
  append(...all) { this.all.push(...all); }
  get children() { return this.all.filter((one) => one instanceof Node); }
  get textContent() { return this.all.map((one) => one.textContent ?? one).join(""); }
  set textContent(text) { this.all = [text]; }
  querySelectorAll() {
    return this.children.flatMap((one) => ["mi", "mn"].includes(one.name) ? [one] : one.querySelectorAll());
  }
  setAttribute(key, value) { this.attributes[key] = value; }
  toString() { return `<${this.name}>${this.all.map(String).join("")}</${this.name}>`; }
}
globalThis.document = {createElement: (name) => new Node(name), createElementNS: (_, name) => new Node(name)};
const {inlineNodes} = await import(process.argv[1] + "/inline.js");
const texts = JSON.parse((await import("node:fs")).readFileSync(0));
console.log(JSON.stringify(texts.map((text) => inlineNodes(text).map(String).join(""))));
"""
SHOWN = table(__file__, "shown")


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_formulas_are_typeset_and_nothing_is_eaten() -> None:
    command = ["node", "--input-type=module", "-e", SCRIPT, str(STATIC)]
    done = subprocess.run(command, input=json.dumps(list(SHOWN)), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert dict(zip(SHOWN, json.loads(done.stdout), strict=True)) == SHOWN
