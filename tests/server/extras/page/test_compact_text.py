"""Compact text keeps every string, template and regular expression, and the lines of imports."""

import re
import shutil
import subprocess

import pytest

from splitfuse.server.extras.page.assets import asset, compacted, names


@pytest.mark.parametrize(
    ("source", "served"),
    [
        ("// a comment\nconst a = 1;\n\nlet b = a + 2;  // behind code", "const a=1;let b=a+2;"),
        ('const a = "x = { y }" + `{ ${b} = c }`;', 'const a="x = { y }"+`{ ${b} = c }`;'),
        ("const a = `x ${b ? ` = ` : c}`;", "const a = `x ${b ? ` = ` : c}`;"),
        ("const a = /x = y/g;\nf(a);", "const a = /x = y/g;f(a);"),
        ("const a = b - -c;", "const a=b - -c;"),
        ('import {a} from "./b.js";\nimport {c} from "./d.js";\n\nconst [d] = e;', 'import {a} from "./b.js";\n'
         'import {c} from "./d.js";\nconst[d]=e;'),
    ],
)  # fmt: skip
def test_a_script(source: str, served: str) -> None:
    assert compacted(source, "js") == served


def test_a_style_and_a_page() -> None:
    assert compacted("/* all */\na > b, c { color: red; margin: 0 1px }\n", "css") == "a > b,c{color:red;margin:0 1px}"
    assert compacted("<p>\n  a, b\n  (c)\n</p>\n", "html") == "<p>\na, b\n(c)\n</p>"


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node, which reads a script without running it")
def test_every_script_can_be_read() -> None:
    """One reading of all modules, as saved.js joins them."""
    texts = [bytes(asset(name).body).decode() for name in sorted(names()) if name.endswith(".js")]
    joined = "\n".join(re.sub(r"^import .*\n", "", text, flags=re.M) for text in texts)
    joined = re.sub(r"^export ", "", joined, flags=re.M)
    process = subprocess.run(["node", "--input-type=module", "--check"], input=joined, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
