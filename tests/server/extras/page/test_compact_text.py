"""Compact text keeps every string, template and regular expression."""

import shutil
import subprocess

import pytest

from splitfuse.server.extras.page.assets import asset, compacted, names


@pytest.mark.parametrize(
    ("source", "served"),
    [
        ("// a comment\nconst a = 1;\n\n  let b = a + 2;  // behind code", "const a = 1;\nlet b = a + 2;"),
        ('const a = "http://b" + `// ${c}`;', 'const a = "http://b" + `// ${c}`;'),
        ("/* all */\na > b {\n  color: red;\n}\n", "a > b {\ncolor: red;\n}"),
        ("<p>\n  a, b\n  (c)\n</p>\n", "<p>\na, b\n(c)\n</p>"),
    ],
)
def test_a_text(source: str, served: str) -> None:
    assert compacted(source) == served


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node, which reads a script without running it")
@pytest.mark.parametrize("name", sorted(name for name in names() if name.endswith(".js")))
def test_every_script_can_be_read(name: str) -> None:
    check = ("node", "--input-type=module", "--check")
    process = subprocess.run(check, input=bytes(asset(name).body), capture_output=True)
    assert process.returncode == 0, process.stderr.decode()
