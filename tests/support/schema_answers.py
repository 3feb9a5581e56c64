"""Random answers to a JSON schema: a walk through its grammar's masks, then a short completion."""

import random
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from splitfuse.engine.language.structured_output.forced_completion import CompletionFinder
from splitfuse.engine.language.structured_output.sandbox_worker import limits

TOKENIZER = LLTokenizer("byte")
_FINDER = CompletionFinder(TOKENIZER)
_USUAL = frozenset(b'"{}[]:, abcdetrunlfsx019-._/')


def random_answer(compiled: Any, rng: random.Random, *, num_tokens: int) -> str | None:
    """Return a text that the grammar allows, random for `num_tokens`; None if no completion is found."""
    matcher = compiled.deep_copy()
    token_ids: list[int] = []
    for _ in range(num_tokens):
        if matcher.is_stopped():
            break
        token_id = _choice(matcher, rng)
        if token_id is None or not matcher.consume_token(token_id):
            break
        token_ids.append(token_id)
    rest = _FINDER.find(matcher, token_ids, max_tokens=500)
    if rest is None or not matcher.consume_tokens(rest) or not matcher.is_accepting():
        return None
    return bytes(token_ids + rest).decode("utf-8", errors="replace")


def compiled_grammar(source: str) -> Any:
    """Return the matcher of a grammar, with the limits of the sandbox."""
    return LLMatcher(TOKENIZER, source, log_level=0, limits=limits())


def grammar_error(source: str) -> str:
    """Return the reason why a grammar cannot be used; "" if it can."""
    matcher = compiled_grammar(source)
    return str(matcher.get_error()) if matcher.is_error() else ""


def _choice(matcher: Any, rng: random.Random) -> int | None:
    """Return an allowed byte, most often one that JSON has many of."""
    mask = matcher.compute_bitmask()
    allowed = [byte for byte in range(256) if mask[byte >> 3] >> (byte & 7) & 1]
    usual = [byte for byte in allowed if byte in _USUAL]
    ends = [byte for byte in usual if byte in b'"}]']
    if ends and rng.random() < 0.3:
        return rng.choice(ends)
    ascii_bytes = [byte for byte in allowed if byte < 128]
    choices = usual if usual and rng.random() < 0.9 else ascii_bytes or allowed
    return rng.choice(choices) if choices else None
