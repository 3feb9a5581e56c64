"""Prompts in requests: text or token ids."""

from typing import Annotated, Any, TypeGuard

from pydantic import PlainValidator

from ...engine.errors import InvalidRequestError

MAX_PROMPTS = 16
TokenIds = list[int]


def is_token_ids(value: object) -> TypeGuard[TokenIds]:
    """True if this is a list of integers, none of them a bool. An empty list counts; the engine refuses it."""
    return isinstance(value, list) and all(type(item) is int for item in value)


def _prompt(value: object) -> str | TokenIds:
    if isinstance(value, str) or is_token_ids(value):
        return value
    raise InvalidRequestError("prompt must be a string or a list of token ids (integers)", param="prompt")


def _prompts(value: object) -> list[Any]:
    if isinstance(value, str) or is_token_ids(value):
        return [value]
    if not isinstance(value, list) or not (all(isinstance(p, str) for p in value) or all(map(is_token_ids, value))):
        raise InvalidRequestError(
            "prompt must be a string, a list of strings, a list of token ids or a list of such lists", param="prompt"
        )
    if len(value) > MAX_PROMPTS:
        raise InvalidRequestError(f"prompt holds {len(value)} prompts; at most {MAX_PROMPTS} fit", param="prompt")
    return value


def _tokens(value: object) -> TokenIds:
    if is_token_ids(value):
        return value
    raise InvalidRequestError("tokens must be a list of token ids (integers)", param="tokens")


def without_special_tokens(prompt: str | TokenIds) -> str | TokenIds | dict[str, Any]:
    """Return the prompt for an engine that must not add special tokens to a text."""
    return {"prompt": prompt, "add_special_tokens": False} if isinstance(prompt, str) else prompt


Prompt = Annotated[str | TokenIds, PlainValidator(_prompt, json_schema_input_type=str | TokenIds)]
Prompts = Annotated[
    list[str | TokenIds], PlainValidator(_prompts, json_schema_input_type=str | TokenIds | list[str] | list[TokenIds])
]
Tokens = Annotated[TokenIds, PlainValidator(_tokens, json_schema_input_type=TokenIds)]
