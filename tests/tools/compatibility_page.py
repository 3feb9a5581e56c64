"""Writes server/docs/compatibility.md: the fate of each field of the official packages, and the fields of our answers.

The fates are found by sending the fields to the parsers (tests/server/field_fates.py), the answers' fields by asking a
server with a fake engine. `--check` writes nothing and fails if the page is out of date.
"""

import asyncio
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "server"), str(TESTS / "support")]

from answer_fields import collected  # noqa: E402
from field_fates import ACTED, CARRIES_NOTHING, FIELDS, IGNORED, REFUSED, Fate, fates  # noqa: E402

PAGE = TESTS.parent / "server/docs/compatibility.md"
MAX_REASON = 120
HEAD = """# Look up a field of OpenAI's or Anthropic's API

These are the fields of the packages openai {openai} and anthropic {anthropic}, and the fate of each here.
`tests/server/behaviour/test_field_fates.py` sends each to the parser of its route; a field without a fate fails the
test. `make compatibility` writes this page from `tests/server/sdk_fields.json`, which `tests/tools/sdk_fields.py`
writes from the packages' types.

| fate | meaning |
|---|---|
| acted on | the request reads otherwise with the field |
| ignored aloud | no effect; `X-Ignored-Fields` names it, and `--strict-fields` refuses it in a body |
| refused | 400; the error names it |
| nothing to do | the default, or data of an earlier answer |

`tools[web_search]` is a tool of that type, `text.format(json_schema)` an object of that type. A field inside an object
is left out where its fate is the object's. Items of /v1/responses have one table, and so have turns of /v1/messages.
"""
ANSWERS = """
## Fields of answers

Every required field of every type is there. The last column has the optional ones that are absent from the answers of
the test. Fields inside absent objects are left out.

| answer | fields | absent |
|---|---:|---|
"""


def parent(path: str) -> str:
    """Return the path of the object that has the field, or of the list that has the object."""
    return path[: max(path.rfind("."), path.rfind("["), path.rfind("("), 0)]


def own(found: Mapping[str, Fate]) -> dict[str, Fate]:
    """Leave out fields whose fate is that of the object around them."""
    return {path: fate for path, fate in found.items() if not _is_implied(path, found)}


def _is_implied(path: str, found: Mapping[str, Fate]) -> bool:
    around = parent(path)
    while around:
        if around in found:
            return found[around].kind == found[path].kind
        around = parent(around)
    return False


def listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def requests(route: str) -> str:
    found = own(fates(route))
    rows = []
    for kind in (ACTED, IGNORED):
        if names := [path for path, fate in found.items() if fate.kind == kind]:
            rows.append(f"| {kind} | {listed(names)} |\n")
    for kind in (REFUSED, CARRIES_NOTHING):
        reasons: dict[str, list[str]] = {}
        for path, fate in found.items():
            if fate.kind == kind:
                reasons.setdefault(_reason(fate.note), []).append(path)
        rows += [f"| {kind} | {listed(names)}: {reason} |\n" for reason, names in reasons.items()]
    return f"\n## {route}\n\n| fate | fields |\n|---|---|\n{''.join(rows)}"


def _reason(note: str) -> str:
    """Return the reason without the place and the name of the field, which stand before it."""
    text = re.sub(r"^(messages|input)\[0\]\S*: | ?'[\w.[\]]+'(?= blocks|; it may)", "", note).strip()
    text = text.replace("|", r"\|").replace("<", "&lt;")
    return text if len(text) <= MAX_REASON else f"{text[:MAX_REASON]}…"


def answers(route: str, shown: set[str]) -> str:
    around = {name.rpartition(".")[0] for name in shown}
    absent = [path for path in FIELDS["answers"][route] if path not in shown and path.rpartition(".")[0] in around]
    num = sum(path in shown for path in FIELDS["answers"][route])
    return f"| {route} | {num} | {listed(absent) or '–'} |\n"


def page(shown: Mapping[str, set[str]]) -> str:
    """Return the page. `shown`: the fields of answers, by route."""
    text = HEAD.format(**FIELDS["packages"]) + "".join(map(requests, FIELDS["requests"]))
    rows = "".join(answers(route, shown[route]) for route in FIELDS["answers"])
    return f"{text}{ANSWERS}{rows}"


if __name__ == "__main__":
    text = page(asyncio.run(collected()))
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != text:
        sys.exit("server/docs/compatibility.md is out of date: run `make compatibility`")
