"""Sources of the documentation site: every page is in the navigation, links lead somewhere, nothing is missing."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

from splitfuse.server.commands.parsers.tree import build_parser

SPEC = importlib.util.spec_from_file_location("site_sources", Path(__file__).parent / "tools/site.py")
assert SPEC is not None
assert SPEC.loader is not None
site = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(site)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    written = tmp_path_factory.mktemp("site")
    site.write_site(written)
    return written


def page(folder: Path, name: str) -> str:
    return (folder / "docs" / name).read_text()


def test_the_navigation_has_every_page(folder: Path) -> None:
    document = tomllib.loads((folder / "zensical.toml").read_text())
    parts = [pages for part in document["project"]["nav"] for pages in part.values()]
    listed = [path for pages in parts for page in pages for path in page.values()]
    written = [path.relative_to(folder / "docs").as_posix() for path in (folder / "docs").rglob("*.md")]
    assert sorted(listed) == sorted(written)
    assert len(set(listed)) == len(listed) > 30


def test_links_within_the_site_lead_to_pages_and_headings(folder: Path) -> None:
    broken = []
    for path in (folder / "docs").rglob("*.md"):
        text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            target, _, _ = link.partition("#")
            if target and not re.match(r"[a-z]+:", target) and not (path.parent / target).exists():
                broken.append(f"{path.name}: {link}")
    assert broken == []


def test_every_command_and_name_has_an_entry(folder: Path) -> None:
    commands = page(folder, "reference/command_line.md")
    assert [name for name in build_parser([])[1] if f"## splitfuse {name}\n" not in commands] == []
    names = page(folder, "reference/names.md")
    import splitfuse

    assert [name for name in splitfuse.__all__ if f"## `{name}`" not in names] == []


def test_a_page_outside_the_navigation_and_a_dead_link_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorter = {part: pages for part, pages in site.NAVIGATION.items() if part != "Internals"}
    monkeypatch.setattr(site, "NAVIGATION", shorter)
    with pytest.raises(SystemExit, match=r"server/docs/internals/serving\.md is in no part of the navigation"):
        site.write_site(tmp_path / "shorter")
    problems: list[str] = []
    site.with_links("[x](nowhere.md)", "server/docs/models.md", tmp_path, problems)
    assert problems == ["server/docs/models.md: nowhere.md leads nowhere"]
