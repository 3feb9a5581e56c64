"""The answer of /v1/messages: a message with blocks of text, thinking and calls of tools, from a job."""

import secrets
from collections.abc import Iterable
from typing import Any

from ....engine.extras.chat.answer_parts import AnswerPart, read_whole
from ...jobs.job import Job
from ..chat.answer_format import AnswerFormat
from ..chat.tool_input import tool_input

Block = dict[str, Any]


def message(job: Job, answer: AnswerFormat, *, max_tokens: int) -> dict[str, Any]:
    """The whole answer of a job that has ended, to a request for so many tokens at most."""
    output = job.outputs[0]
    parts = [AnswerPart("content", output.text)] if answer.is_plain else read_whole(answer.reader(), output.text)
    blocks = _blocks(parts)
    has_called = any(block["type"] == "tool_use" for block in blocks)
    end = ending(job, has_called=has_called, max_tokens=max_tokens)
    return head(job) | {"content": blocks, **end, "usage": usage(job)}


def head(job: Job) -> dict[str, Any]:
    """The message before there is anything of it."""
    return {
        "id": f"msg_{job.seq_id}",
        "type": "message",
        "role": "assistant",
        "model": job.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage(job),
    }


def usage(job: Job) -> dict[str, int]:
    """Tokens so far. What came from the prefix cache is known at the end, and no part of `input_tokens`."""
    num_cached = job.num_cached_tokens
    return {
        "input_tokens": job.num_prompt_tokens - num_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": num_cached,
        "output_tokens": job.num_completion_tokens,
    }


def ending(job: Job, *, has_called: bool, max_tokens: int) -> dict[str, str | None]:
    """Why it ended; a deadline is a length that ran out, as on the other routes."""
    output, sequence = job.outputs[0], None
    if output.finish_reason == "length" and len(output.token_ids) < max_tokens:
        reason = "model_context_window_exceeded"
    elif output.finish_reason in ("length", "timeout"):
        reason = "max_tokens"
    elif isinstance(output.stop_reason, str):
        reason, sequence = "stop_sequence", output.stop_reason
    else:
        reason = "tool_use" if has_called else "end_turn"
    return {"stop_reason": reason, "stop_sequence": sequence}


def opening(part: AnswerPart) -> Block:
    """The block that this part begins, empty."""
    if part.kind == "content":
        return {"type": "text", "text": ""}
    if part.kind == "reasoning":
        return {"type": "thinking", "thinking": "", "signature": ""}  # there is nothing to prove
    return {"type": "tool_use", "id": "toolu_" + secrets.token_hex(12), "name": part.text, "input": {}}


def _blocks(parts: Iterable[AnswerPart]) -> list[Block]:
    """The blocks of these parts, of which adjacent ones of one kind are joined."""
    blocks: list[Block] = []
    for part in parts:
        if part.kind == "arguments":
            blocks[-1]["input"] = tool_input(part.text)
        elif part.text:
            blocks.append(opening(part))
            if part.kind != "call":
                blocks[-1]["text" if part.kind == "content" else "thinking"] = part.text
    return blocks
