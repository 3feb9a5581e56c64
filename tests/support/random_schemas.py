"""Random JSON schemas of every kind that structured output promises to enforce."""

import random
from typing import Any

Schema = dict[str, Any]

_WORDS = ("name", "age", "tags", "id", "città", "a b", "Größe", "日本", "x", "size", "e-mail", "note", "ok", "list")


def random_schema(rng: random.Random, *, depth: int = 4, bounded: bool = True) -> Schema:
    """Return a schema that nests at most `depth` levels. `bounded`: every value has a longest form."""
    leaves = [_enum, _const, _string, _number, _integer, _boolean, _null]
    branches = [_object, _object, _array, _any_of] if depth > 1 else []
    return rng.choice(leaves + branches + branches)(rng, depth, bounded)


def _object(rng: random.Random, depth: int, bounded: bool) -> Schema:
    names = rng.sample(_WORDS, rng.randint(0, 4))
    properties = {name: random_schema(rng, depth=depth - 1, bounded=bounded) for name in names}
    schema: Schema = {"type": "object", "properties": properties}
    schema["required"] = [name for name in names if rng.random() < 0.6]
    if bounded or rng.random() < 0.7:
        schema["additionalProperties"] = False
    return schema


def _array(rng: random.Random, depth: int, bounded: bool) -> Schema:
    schema: Schema = {"type": "array", "items": random_schema(rng, depth=depth - 1, bounded=bounded)}
    least = rng.randint(0, 2)
    if rng.random() < 0.5:
        schema["minItems"] = least
    if bounded or rng.random() < 0.5:
        schema["maxItems"] = least + rng.randint(0, 2)
    if rng.random() < 0.2:
        schema["prefixItems"] = [random_schema(rng, depth=1, bounded=bounded)]
    return schema


def _any_of(rng: random.Random, depth: int, bounded: bool) -> Schema:
    return {"anyOf": [random_schema(rng, depth=depth - 1, bounded=bounded) for _ in range(rng.randint(1, 3))]}


def _enum(rng: random.Random, depth: int, bounded: bool) -> Schema:
    values = ["red", "green", 'a "quoted" one', "новый\n", "", 7, -2.5, None, True, [1, 2], {"a": [None]}]
    return {"enum": rng.sample(values, rng.randint(1, 4))}


def _const(rng: random.Random, depth: int, bounded: bool) -> Schema:
    return {"const": rng.choice(["fixed", 12, False, None, "😀", {"k": "v"}])}


def _string(rng: random.Random, depth: int, bounded: bool) -> Schema:
    schema: Schema = {"type": "string"}
    kind = rng.random()
    if kind < 0.15:
        schema["pattern"] = rng.choice(["^[A-Z]{2}-[0-9]{3}$", "^(yes|no)$", "^[0-9a-f]{4}$", "^a.{0,3}z$"])
    elif kind < 0.3:
        schema["format"] = rng.choice(["date", "uuid", "ipv4"] if bounded else ["time", "date-time", "email", "uri"])
    else:
        least = rng.randint(0, 5)
        if rng.random() < 0.6:
            schema["minLength"] = least
        if bounded or rng.random() < 0.5:
            schema["maxLength"] = least + rng.randint(0, 20)
    return schema


def _number(rng: random.Random, depth: int, bounded: bool) -> Schema:
    low = rng.choice([-1000, -1, 0, 0.5, 10])
    schema: Schema = {"type": "number"}
    if bounded or rng.random() < 0.5:
        schema |= {"minimum": low, "maximum": low + rng.choice([0.25, 1, 99, 1000])}
    elif rng.random() < 0.5:
        schema["exclusiveMinimum"] = low
    return schema


def _integer(rng: random.Random, depth: int, bounded: bool) -> Schema:
    low = rng.choice([-120, -1, 0, 3, 99])
    schema: Schema = {"type": "integer"}
    if bounded or rng.random() < 0.6:
        schema |= {"minimum": low, "maximum": low + rng.choice([0, 1, 7, 500])}
    if rng.random() < 0.2:
        schema["multipleOf"] = 1
    return schema


def _boolean(rng: random.Random, depth: int, bounded: bool) -> Schema:
    return {"type": "boolean"}


def _null(rng: random.Random, depth: int, bounded: bool) -> Schema:
    return {"type": rng.choice(["null", ["null", "boolean"], ["integer", "null"]][: 2 if bounded else 3])}
