"""The words of CONTRIBUTING.md: how docstrings begin, and what loop variables and names may not be."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("client", "engine", "kernels", "server", "tests")
# A free relative or a pronoun: the reader does not know yet what the sentence is about.
WRONG_BEGINNINGS = re.compile(r"(What|Whatever|Whether|As|How|Of|Where|Which|Who|Those|These|It|They|The same)\b")
# A trailing comment that is the second half of the name before it.
HANGING_COMMENTS = re.compile(r"[^#\"']*\S  # (of|as|what|those|whether|which) [^\"']*$")
# A pronoun about a pronoun: the reader must look for the noun in another sentence.
CHAINS = re.compile(
    r"\bone of those\b|\bthose (that |which )?(it|they|there)\b|\b(that|those) of (it|them|those|that|which)\b"
    r"|\bthe ones? of which\b|\bof which (it|they|the first)\b|, those (that|which)\b"
    r"|\b(and|or|but|of|with|after|before) those (that|of|which)\b|\b(is|are|was|were) (that|those) of\b"
)
# A function or a class named by a participle alone: its noun says the kind.
PARTICIPLES = {"made", "given", "told", "asked", "taken", "left", "seen", "written", "held", "meant"}
MAX_SHARE = 0.03
SCOPES = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def sources(folder: str) -> list[Path]:
    return [path for path in sorted((ROOT / folder).rglob("*.py")) if "csrc" not in path.parts]


@cache
def words(folder: str) -> dict[str, list[tuple[str, str]]]:
    """Place and text of each docstring, loop variable and name of a function or class: one pass, for it takes 2 s."""
    found: dict[str, list[tuple[str, str]]] = {"docstring": [], "variable": [], "name": []}
    for path in sources(folder):
        for node in ast.walk(ast.parse(path.read_text())):
            place = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"
            if isinstance(node, SCOPES) and (text := ast.get_docstring(node)):
                found["docstring"].append((place, text))
            if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension) and isinstance(node.target, ast.Name):
                found["variable"].append((f"{path.relative_to(ROOT)}:{node.target.lineno}", node.target.id))
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found["name"].append((place, node.name))
    return found


def comments(folder: str) -> Iterator[tuple[str, str]]:
    """Place and text of each comment."""
    for path in sources(folder):
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
            if token.type == tokenize.COMMENT:
                yield f"{path.relative_to(ROOT)}:{token.start[0]}", token.string


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_begin_with_a_verb_or_a_noun(folder: str) -> None:
    texts = [(place, text.splitlines()[0]) for place, text in words(folder)["docstring"]]
    wrong = [f"{place} {line}" for place, line in texts if WRONG_BEGINNINGS.match(line)]
    assert len(wrong) <= MAX_SHARE * len(texts), "\n".join(wrong)


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_loop_variable_is_called_each(folder: str) -> None:
    assert [place for place, name in words(folder)["variable"] if name == "each"] == [], "name the thing"


@pytest.mark.parametrize("folder", ["client", "engine", "kernels", "server"])
def test_trailing_comments_stand_alone(folder: str) -> None:
    """`x = 3  # of the last step` is half a sentence; `# last step's tokens` is a phrase."""
    lines = [
        f"{path.relative_to(ROOT)}:{number} {line.strip()}"
        for path in sources(folder)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if "  # " in line and HANGING_COMMENTS.match(line)
    ]
    assert len(lines) <= 5, "\n".join(lines)


@pytest.mark.parametrize("folder", ["client", "engine", "kernels", "server"])
def test_sentences_name_their_nouns(folder: str) -> None:
    texts = (*words(folder)["docstring"], *comments(folder))
    wrong = [f"{place} {found[0]}" for place, text in texts if (found := CHAINS.search(" ".join(text.split())))]
    assert wrong == []


@pytest.mark.parametrize("page", sorted((ROOT / "server").rglob("*.md")), ids=lambda page: page.stem)
def test_pages_name_their_nouns(page: Path) -> None:
    assert [found[0] for found in CHAINS.finditer(" ".join(page.read_text().split()))] == []


@pytest.mark.parametrize("folder", ["client", "engine", "kernels", "server"])
def test_no_function_or_class_is_named_by_a_participle_alone(folder: str) -> None:
    wrong = [place for place, name in words(folder)["name"] if name.strip("_").lower() in PARTICIPLES]
    assert wrong == [], "say what kind of thing"
