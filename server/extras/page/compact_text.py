"""Compact text of the pages' files: no comments, and no spaces that mean nothing. A fifth fewer bytes, the same code.

The sources follow some rules: strings in double quotes, a semicolon after each statement, templates within one line.
"""

import re
from collections.abc import Iterator

_COMMENT = re.compile(r"(?<=[;,{(\[})])  // .*")  # behind code
_STYLE_SPACE = re.compile(r" ?([{};,]|(?<=[a-z-]):(?= )) ?")
_SCRIPT_SPACE = re.compile(r" ?([=<>&|?:,{}()\[\]!*%;]+) ?| ([-+]) (?![-+])")
_TEXT = re.compile(r'("(?:[^"\\]|\\.)*"|`[^`]*`)')
# Line breaks between the lines of one declaration. Imports and exports keep their lines, by which saved.js finds them.
_BREAK = re.compile(r"([,;(\[{}])\n(?!(?:export|import|const|function|class)\b)")


def compacted(text: str, suffix: str) -> str:
    """Return the text of a file of this suffix without comments and needless spaces."""
    lines = _lines(text)
    if suffix == "css":
        return "".join(_STYLE_SPACE.sub(r"\1", line) for line in lines)
    if suffix == "js":
        return _BREAK.sub(r"\1", "\n".join(map(_script_line, lines)))
    return "\n".join(lines)


def _lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        line = _COMMENT.sub("", line).strip()
        if line and not line.startswith(("//", "/*")):
            yield line


def _script_line(line: str) -> str:
    """Return the line without needless spaces, or as it is if spaces could be text there."""
    parts = _TEXT.split(line)  # code, text, code, …
    has_regex = any("/" in part.replace(" / ", "") for part in parts[::2])
    if has_regex or line.startswith("import ") or line.count("`") > 2 or any("`" in part for part in parts[::2]):
        return line
    parts[::2] = [_SCRIPT_SPACE.sub(r"\1\2", part) for part in parts[::2]]
    return "".join(parts)
