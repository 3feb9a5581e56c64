"""References of a static schema: its parts, the targets of references, and the cycles that they make."""

from collections.abc import Iterator, Mapping
from typing import Any

from .dialect import Schema
from .static_schema import ALONE, LISTED, NAMED


def schemas_in(root: Any) -> Iterator[Schema]:
    """Yield all schemas within a static schema, and the schema itself."""
    waiting = [root]
    while waiting:
        schema = waiting.pop()
        if not isinstance(schema, dict):
            continue
        yield schema
        for keyword, part in schema.items():
            if isinstance(part, dict) and keyword in NAMED:
                waiting += part.values()
            elif isinstance(part, list) and keyword in LISTED:
                waiting += part
            elif keyword in ALONE:
                waiting.append(part)


def target_of(root: Any, schema: Any) -> Any:
    """Return the definition that a static reference stands for, or the schema itself."""
    reference = schema.get("$ref") if isinstance(schema, dict) else None
    if not isinstance(reference, str) or not reference.startswith("#"):
        return schema
    target = root
    for key in reference[1:].split("/")[1:]:
        target = target.get(key) if isinstance(target, dict) else None
    return target if isinstance(target, dict) else schema


def reference_cycles(root: Any) -> Mapping[str, int]:
    """Return the number of its cycle by reference: targets with one number reach each other. Others are left out."""
    after = _references(root)
    before: dict[str, list[str]] = {reference: [] for reference in after}
    for reference, targets in after.items():
        for target in targets:
            before.setdefault(target, []).append(reference)
    cycles: dict[str, int] = {}
    seen: set[str] = set()
    for reference in reversed(_in_order(after)):  # Kosaraju: forwards for the order, backwards for the cycles
        members = [] if reference in seen else _reached(reference, before, seen)
        if len(members) > 1 or reference in after[reference]:
            cycles |= dict.fromkeys(members, len(cycles))
    return cycles


def _references(root: Any) -> dict[str, list[str]]:
    """Return the references that stand within each definition, by the definition's own reference; "#" is the root."""
    if not isinstance(root, dict):
        return {}
    keys = ("$defs", "definitions")
    parts: dict[str, Any] = {"#": {keyword: part for keyword, part in root.items() if keyword not in keys}}
    parts |= {f"#/{key}/{name}": part for key in keys for name, part in root.get(key, {}).items()}
    return {
        name: [schema["$ref"] for schema in schemas_in(part) if str(schema.get("$ref")) in parts]
        for name, part in parts.items()
    }


def _in_order(after: Mapping[str, list[str]]) -> list[str]:
    """Return the references, each after the references that its schema contains, as far as cycles allow."""
    order: list[str] = []
    seen: set[str] = set()
    for start in after:
        waiting = [(start, False)]
        while waiting:
            reference, is_left = waiting.pop()
            if is_left:
                order.append(reference)
            elif reference not in seen:
                seen.add(reference)
                waiting.append((reference, True))
                waiting += [(target, False) for target in after[reference]]
    return order


def _reached(start: str, before: Mapping[str, list[str]], seen: set[str]) -> list[str]:
    """Return the references that lead to one and have not been seen, and see them."""
    members: list[str] = []
    waiting = [start]
    while waiting:
        reference = waiting.pop()
        if reference not in seen:
            seen.add(reference)
            members.append(reference)
            waiting += before[reference]
    return members
