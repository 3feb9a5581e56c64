"""Formulas, emphasis and links in answers: what is typeset, and what stays as it was written. Needs node."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import splitfuse.server

STATIC = Path(splitfuse.server.__file__).parent / "extras/page/static"
SCRIPT = r"""
class Node {
  constructor(name) { this.name = name; this.all = []; this.attributes = {}; }
  append(...all) { this.all.push(...all); }
  setAttribute(key, value) { this.attributes[key] = value; }
  toString() { return `<${this.name}>${this.all.map(String).join("")}</${this.name}>`; }
}
globalThis.document = {createElement: (name) => new Node(name), createElementNS: (_, name) => new Node(name)};
const {inlineNodes} = await import(process.argv[1] + "/inline.js");
const texts = JSON.parse((await import("node:fs")).readFileSync(0));
console.log(JSON.stringify(texts.map((text) => inlineNodes(text).map(String).join(""))));
"""
SHOWN = {
    r"\(a^2+b^2=c^2\)": "<math><mrow><msup><mi>a</mi><mn>2</mn></msup><mo>+</mo><msup><mi>b</mi><mn>2</mn></msup>"
    "<mo>=</mo><msup><mi>c</mi><mn>2</mn></msup></mrow></math>",
    r"\[ \sum_{i=1}^n i \]": "<math><mrow><munderover><mo>∑</mo><mrow><mi>i</mi><mo>=</mo><mn>1</mn></mrow><mi>n</mi>"
    "</munderover><mi>i</mi></mrow></math>",
    r"$$\int_0^1 x^2\,dx$$": "<math><mrow><msubsup><mo>∫</mo><mn>0</mn><mn>1</mn></msubsup><msup><mi>x</mi><mn>2</mn>"
    "</msup><mspace></mspace><mi>d</mi><mi>x</mi></mrow></math>",
    r"$E = mc^2$": "<math><mrow><mi>E</mi><mo>=</mo><mi>m</mi><msup><mi>c</mi><mn>2</mn></msup></mrow></math>",
    r"$\frac{1}{\sqrt[3]{x}}$": "<math><mfrac><mn>1</mn><mroot><mi>x</mi><mn>3</mn></mroot></mfrac></math>",
    r"$\begin{pmatrix}a&b\\c&d\end{pmatrix}$": "<math><mrow><mo>(</mo><mtable><mtr><mtd><mi>a</mi></mtd><mtd><mi>b</mi>"
    "</mtd></mtr><mtr><mtd><mi>c</mi></mtd><mtd><mi>d</mi></mtd></mtr></mtable><mo>)</mo></mrow></math>",
    r"$\left(\frac12\right)$": "<math><mrow><mo>(</mo><mfrac><mn>1</mn><mn>2</mn></mfrac><mo>)</mo></mrow></math>",
    r"$\alpha \le \text{a b}$": "<math><mrow><mi>α</mi><mo>≤</mo><mtext>a b</mtext></mrow></math>",
    r"\(\unknown{x}\)": r"<code>\(\unknown{x}\)</code>",
    r"$\frac{1}{$ x": r"<code>$\frac{1}{$</code> x",
    "$5 and $10": "$5 and $10",
    "cost $5, then $10.": "cost $5, then $10.",
    r"\\(a^2\\)": r"\(a^2\)",
    r"1 \* 2": "1 * 2",
    "***bold italic*** and **b**": "<strong><em>bold italic</em></strong> and <strong>b</strong>",
    "see <https://a.example/b>.": "see <a>https://a.example/b</a>.",
    "a < b > c": "a < b > c",
}


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_formulas_are_typeset_and_nothing_is_eaten() -> None:
    command = ["node", "--input-type=module", "-e", SCRIPT, str(STATIC)]
    done = subprocess.run(command, input=json.dumps(list(SHOWN)), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert dict(zip(SHOWN, json.loads(done.stdout), strict=True)) == SHOWN
