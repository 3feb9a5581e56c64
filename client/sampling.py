"""Sampling fields of POST /generate, for editors and type checkers; the server checks the values."""

from typing import Any, Literal, TypedDict


class Sampling(TypedDict, total=False):
    """Keyword arguments of generate(), submit() and stream(); None means the server's default."""

    model: str | None
    max_tokens: int | None
    max_length: int | None
    min_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    seed: int | None
    n: int | None
    stop: str | list[str] | None
    stop_token_ids: list[int] | None
    include_stop_str_in_output: bool | None
    ignore_eos: bool | None
    logit_bias: dict[str, float] | dict[int, float] | None
    bad_words: list[str] | None
    allowed_token_ids: list[int] | None
    logprobs: int | None
    prompt_logprobs: int | None
    skip_special_tokens: bool | None
    truncate_prompt_tokens: int | None
    truncation_side: Literal["left", "right"] | None
    structured_outputs: dict[str, Any] | None
    response_format: dict[str, Any] | None
    cache_salt: str | None
    priority: int | None
    timeout_ms: int | None
    max_queue_ms: int | None
    thinking_budget: int | None
    ttft_ms: int | None
    itl_ms: int | None
    best_effort: bool | None
    ttl_s: float | None
    receipt: bool | None
    return_token_ids: bool | None
