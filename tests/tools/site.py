"""Assembles the documentation site: `site.py FOLDER` writes zensical.toml and its pages into FOLDER.

Guides and concepts are files of the repository; the reference is written from the sources. A page that the navigation
misses, a link that leads nowhere or a setting without a text is an error. `make docs` builds the site from it.
"""

import argparse
import inspect
import json
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCS = "server/docs"
# Title of a part → its pages: files of the repository, or functions that write a page.
NAVIGATION: dict[str, dict[str, str]] = json.loads(Path(__file__).with_suffix(".json").read_text())
_LINK = re.compile(r"(!?\[[^\]]*\]\()([^)#\s]+)(#[^)\s]*)?(\))")
_SOURCE_ATTRIBUTE = re.compile(r'(src(?:set)?=")([^":]+)(")')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    write_site(parser.parse_args().folder)


def write_site(folder: Path) -> None:
    """Write the site's sources into a new folder. Raises SystemExit with all that is wrong."""
    pages = {path: read_page(path) for path in page_paths()}
    problems = [f"{path.relative_to(ROOT).as_posix()} is in no part of the navigation" for path in unlisted(pages)]
    for source, text in pages.items():
        target = folder / "docs" / place(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(with_links(text, source, folder, problems))
    if problems:
        sys.exit("\n".join(problems))
    (folder / "zensical.toml").write_text(configuration())


def page_paths() -> list[str]:
    """Return the repository's paths of all pages; those of reference/ are written from the sources."""
    return [repository_path(name) for part in NAVIGATION.values() for name in part.values()]


def repository_path(name: str) -> str:
    return name if name.endswith(".md") else f"{DOCS}/{name}.md"


def place(source: str) -> str:
    """Return the path of a page within the site."""
    if source.startswith((f"{DOCS}/", "reference/")):
        return source.removeprefix(f"{DOCS}/")
    return "index.md" if source == "README.md" else Path(source).name.lower()


def unlisted(pages: dict[str, str]) -> list[Path]:
    return [path for path in sorted((ROOT / DOCS).rglob("*.md")) if path.relative_to(ROOT).as_posix() not in pages]


def read_page(source: str) -> str:
    return REFERENCE[source]() if source in REFERENCE else (ROOT / source).read_text()


def with_links(text: str, source: str, folder: Path, problems: list[str]) -> str:
    """Point links to other pages at their places, pictures at copies, and links to sources at the repository."""
    here = Path(place(source)).parent

    def resolved(link: str) -> str:
        if re.match(r"[a-z]+:", link):
            return link
        target = (ROOT / source).parent / link
        path = Path(os.path.normpath(target)).relative_to(ROOT).as_posix()
        if not (ROOT / path).exists() and path not in REFERENCE:
            problems.append(f"{source}: {link} leads nowhere")
        elif path in page_paths():
            return os.path.relpath(place(path), here)
        elif target.suffix in (".png", ".svg", ".webp"):
            copy = folder / "docs/pictures" / target.name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(target.read_bytes())
            return os.path.relpath(f"pictures/{target.name}", here)
        return f"{repository()}/blob/main/{path}"

    text = _LINK.sub(lambda m: m[1] + resolved(m[2]) + (m[3] or "") + m[4], text)
    text = _SOURCE_ATTRIBUTE.sub(lambda m: m[1] + resolved(m[2]) + m[3], text)
    # A page that is named as code becomes a link to it.
    names = re.compile(r"(?<!\[)`((?:server/docs/[\w/]+|server/API|[A-Z]+)\.md)`")
    return names.sub(lambda m: f"[`{m[1]}`]({resolved_name(m[1], here)})" if m[1] in page_paths() else m[0], text)


def resolved_name(path: str, here: Path) -> str:
    return os.path.relpath(place(path), here)


def project() -> dict[str, Any]:
    document: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return document


def repository() -> str:
    return str(project()["urls"]["Homepage"])


def configuration() -> str:
    about = project()
    lines = [
        "[project]",
        'site_name = "splitfuse"',
        f"site_description = {json.dumps(about['description'])}",
        "nav = [",
    ]
    for part, pages in NAVIGATION.items():
        entries = (f"{{ {json.dumps(title)} = {json.dumps(place(repository_path(n)))} }}" for title, n in pages.items())
        lines.append(f"  {{ {json.dumps(part)} = [{', '.join(entries)}] }},")
    lines += ["]", "", "[project.theme]", 'features = ["navigation.tabs", "navigation.top", "search.highlight"]']
    # Without fonts of another server, and without repo_url, whose stars are fetched: pages work without a network.
    lines += ["font = false", ""]
    return "\n".join(lines)


# Pages of the reference.


def command_line() -> str:
    from splitfuse.server.commands.parsers.tree import build_parser

    os.environ["COLUMNS"] = "100"
    _, commands = build_parser([])
    lines = ["# Command line", "", "Settings have [a page of their own](../server/docs/reference.md).", ""]
    for name, parser in commands.items():
        usage = re.sub(r"\n\nsettings:.*", "\n", parser.format_help(), flags=re.DOTALL)
        lines += [f"## splitfuse {name}", "", "```text", usage.strip(), "```", ""]
    return "\n".join(lines)


def names() -> str:
    import splitfuse

    lines = ["# Python names", "", "What `from splitfuse import …` gives.", ""]
    for name in splitfuse.__all__:
        found = getattr(splitfuse, name)
        lines += [f"## `{name}`", ""]
        if inspect.isclass(found) or callable(found):
            lines += [f"```python\n{name}{signature(found)}\n```", ""]
        lines += [inspect.getdoc(found) or "", ""]
        for member, function in public_methods(found):
            lines += [f"### `{name}.{member}{signature(function)}`", "", inspect.getdoc(function) or "", ""]
    return "\n".join(lines)


def signature(found: Any) -> str:
    try:
        return str(inspect.signature(found)).replace("'", "")
    except (TypeError, ValueError):
        return ""


def public_methods(found: Any) -> Iterator[tuple[str, Any]]:
    if inspect.isclass(found):
        for name, member in vars(found).items():
            if not name.startswith("_") and inspect.isfunction(member) and member.__doc__:
                yield name, member


REFERENCE: dict[str, Callable[[], str]] = {"reference/command_line.md": command_line, "reference/names.md": names}

if __name__ == "__main__":
    main()
