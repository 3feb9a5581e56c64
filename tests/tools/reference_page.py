"""Writes server/docs/reference.md: all routes, fields, settings and metrics, from the server's own declarations.

Imports the server, unlike extras_pages.py. `--check` writes nothing and fails if the page is out of date.
"""

import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "server/docs/reference.md"
HEAD = """# Look up a route, a field, a setting or a metric

`make docs` writes this page from the server's declarations. `server/API.md` has the rules, `/openapi.json` the same in
machine form, `compatibility.md` the fate of each field of the packages `openai` and `anthropic`.
"""
# Beginnings of descriptions that say that a field is taken for its name alone.
TOLERATED = {"Accepted without effect": "without effect", "Not supported": "only with a value that asks for nothing"}
Schema = Mapping[str, Any]


def document() -> Schema:
    """Return the OpenAPI document of a server with every route that a setting or a model can add."""
    from splitfuse.server.app import build_app
    from splitfuse.server.settings import Settings

    app: Schema = build_app(Settings(model="some/model-that-may-pool", enable_lora=True)).openapi()
    return app


def first_sentence(text: str) -> str:
    return re.split(r"\n\n|(?<=\w)\. (?=[A-Z])", text)[0].replace("\n", " ").rstrip(".")


def names(found: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in found)


def routes(paths: Schema) -> Iterator[str]:
    yield from ["", "## Routes", ""]
    for path, methods in sorted(paths.items()):
        for method, operation in methods.items():
            text = operation.get("description") or operation.get("summary", "")
            yield f"- `{method.upper()} {path}`: {first_sentence(text)}"


def limits(schema: Schema) -> str:
    """Kind and bounds of a field's value."""
    options = [limits(option) for option in schema.get("anyOf", ())]
    if options:
        return " or ".join(option for option in dict.fromkeys(options) if option != "null")
    kind = schema.get("type", "object")
    kind = next(word for word in kind if word != "null") if isinstance(kind, list) else str(kind)
    low = schema.get("minimum", schema.get("minLength", schema.get("minItems", schema.get("exclusiveMinimum"))))
    high = schema.get("maximum", schema.get("maxLength", schema.get("maxItems", schema.get("maxProperties"))))
    high = None if high in (2**31 - 1, 2**64 - 1) else high
    bounds = f" above {low}" if "exclusiveMinimum" in schema else f" from {low}" * (low is not None)
    return f"{kind}{bounds}{f' to {high}' * (high is not None)}"


def sampling_fields(properties: Schema) -> Iterator[str]:
    from splitfuse.engine.core.sampling_params import FIELD_NAMES

    yield from ["", "## Sampling fields", ""]
    yield from ["Fields of every route that generates; `null` counts as absent.", ""]
    yield from ["| field | takes | default | |", "|---|---|---|---|"]
    for name in (name for name in properties if name in FIELD_NAMES):
        schema = properties[name]
        default = f"`{schema['default']}`".lower() if schema.get("default") is not None else ""
        yield f"| `{name}` | {limits(schema)} | {default} | {first_sentence(schema.get('description', ''))} |"


def bodies(schemas: Schema) -> Iterator[str]:
    from splitfuse.engine.core.sampling_params import FIELD_NAMES
    from splitfuse.server.api.known_fields import CONSTRAINTS, HARMLESS, HINTS

    common = {*FIELD_NAMES, *CONSTRAINTS, *HARMLESS, *HINTS}
    yield from ["", "## Bodies", ""]
    yield from ["Fields of each body. “…” stands for the sampling fields and the names of other servers:", ""]
    for kind, found in (("without effect", HINTS), ("only with a value that asks for nothing", HARMLESS)):
        yield f"* {kind}: {names(sorted(found))}"
    yield from [f"* other names of `structured_outputs`: {names(sorted(CONSTRAINTS))}", ""]
    for model, schema in sorted(schemas.items()):
        properties = schema["properties"]
        is_sampling = set(properties) >= FIELD_NAMES
        groups: dict[str, list[str]] = defaultdict(list)
        for name, field in properties.items():
            text = field.get("description", "")
            kind = next((word for beginning, word in TOLERATED.items() if text.startswith(beginning)), "")
            if not (is_sampling and name in common and (kind or name in FIELD_NAMES or name in CONSTRAINTS)):
                groups[kind].append(name)
        own = names(groups.pop("", [])) + ", …" * is_sampling
        parts = [own] if own else []
        parts += [f"{kind}: {names(sorted(found))}" for kind, found in sorted(groups.items())]
        yield f"- {model}: {'; '.join(parts)}"


def settings() -> Iterator[str]:
    from splitfuse.engine.config.setting import settings_of
    from splitfuse.server.commands.setting_flags import SECTIONS, section_of
    from splitfuse.server.settings import Settings

    found = settings_of(Settings)
    yield from ["", "## Settings", ""]
    yield "A setting is a flag of `splitfuse serve`, a variable and a key of a file: `--max-num-seqs 8`,"
    yield "`SPLITFUSE_MAX_NUM_SEQS=8`, `max_num_seqs: 8`. Defaults stand in brackets."
    for section in SECTIONS:
        yield from ["", f"### {section.capitalize()}", ""]
        for name, setting in found.items():
            if section_of(name) != section or name == "model":
                continue
            if not setting.help:
                sys.exit(f"the setting {name} has no text")
            default = f" (`{setting.default}`)" if setting.default not in (None, "", ()) else ""
            choices = f" One of {names(list(setting.choices))}." if setting.choices else ""
            yield f"- `{setting.flag}`{default}: {setting.help}.{choices}"


def metrics() -> Iterator[str]:
    from splitfuse.server.metrics import Metrics

    text = Metrics(prefix="splitfuse:", model_name="m", stats=dict).render().decode()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\w+)$", text, re.MULTILINE))
    yield from ["", "## Metrics", ""]
    yield from ["`GET /metrics`, with the prefix of `--metrics-prefix` and the label `model_name`.", ""]
    for name, help in re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE):
        yield f"- `{name}` ({kinds[name]}): {help}"


def page() -> str:
    found = document()
    schemas = {name: schema for name, schema in found["components"]["schemas"].items() if name != "Error"}
    properties = schemas["GenerateRequest"]["properties"]
    parts = (routes(found["paths"]), sampling_fields(properties), bodies(schemas), settings(), metrics())
    return HEAD + "\n".join(line for part in parts for line in part) + "\n"


def main() -> None:
    text = page()
    if sys.argv[1:] == ["--check"]:
        sys.exit(
            0
            if PAGE.exists() and PAGE.read_text() == text
            else f"{PAGE} is out of date; run `make docs`, or python {__file__}"
        )
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
