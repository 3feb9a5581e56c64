"""Takes a route's own fields out of a request's JSON; what is left goes to SamplingParams, which refuses the rest."""

from typing import Any, TypeGuard

from ...engine.errors import InvalidRequestError

MAX_PROMPTS = 16
MAX_USER_CHARS = 256


def take_bool(fields: dict[str, Any], name: str, *, default: bool = False) -> bool:
    """An optional true or false; null counts as absent."""
    value = fields.pop(name, None)
    if value is not None and not isinstance(value, bool):
        raise InvalidRequestError(f"{name} must be true or false", param=name)
    return default if value is None else value


def take_user(fields: dict[str, Any]) -> str:
    """Who the end user is, for a server without keys to tell its tenants apart; "" if nobody says."""
    user = fields.pop("user", None)
    if user is None:
        return ""
    if not isinstance(user, str) or len(user) > MAX_USER_CHARS:
        raise InvalidRequestError(f"user must be a string of at most {MAX_USER_CHARS} characters", param="user")
    return user


def take_prompt(fields: dict[str, Any]) -> str | list[int]:
    """The prompt of a route that takes one."""
    prompt = _required(fields, "prompt")
    if isinstance(prompt, str) or is_ids(prompt):
        return prompt
    raise InvalidRequestError("prompt must be a string or a list of token ids (integers)", param="prompt")


def take_prompts(fields: dict[str, Any]) -> list[str | list[int]]:
    """The prompts of a completion: a string, strings, ids, or lists of ids."""
    prompt = _required(fields, "prompt")
    if isinstance(prompt, str) or is_ids(prompt):
        return [prompt]
    if not isinstance(prompt, list) or not (all(isinstance(p, str) for p in prompt) or all(is_ids(p) for p in prompt)):
        raise InvalidRequestError(
            "prompt must be a string, a list of strings, a list of token ids or a list of such lists", param="prompt"
        )
    if len(prompt) > MAX_PROMPTS:
        raise InvalidRequestError(f"prompt holds {len(prompt)} prompts; at most {MAX_PROMPTS} fit", param="prompt")
    return prompt


def event_id(text: str, *, name: str) -> int:
    """The id of an event after which a reader wants to go on."""
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise InvalidRequestError(f"{name} must be the id of an event, an integer of at least 0", param=name)
    return int(text)


def is_ids(value: object) -> TypeGuard[list[int]]:
    """Whether this is a list of integers, none of them a bool. An empty list is one: the engine says what is wrong."""
    return isinstance(value, list) and all(type(item) is int for item in value)


def _required(fields: dict[str, Any], name: str) -> Any:
    value = fields.pop(name, None)
    if value is None:
        raise InvalidRequestError(f"{name} is missing", param=name)
    return value
