"""Answers of /v1/messages, built from a job: a message with blocks of text, thinking and tool calls."""

import secrets
from collections.abc import Iterable
from typing import Any

from ....engine.language.chat.answer_parts import AnswerPart, read_whole
from ...api.chat.answer_format import AnswerFormat, tool_input
from ...jobs.job import Job

Block = dict[str, Any]


def message(job: Job, answer: AnswerFormat, *, max_tokens: int) -> dict[str, Any]:
    """Build the whole answer of a job that has ended. `max_tokens` is the request's limit."""
    output = job.outputs[0]
    parts = [AnswerPart("content", output.text)] if answer.is_plain else read_whole(answer.reader(), output.text)
    blocks = _blocks(parts)
    has_called = any(block["type"] == "tool_use" for block in blocks)
    end = ending(job, has_called=has_called, max_tokens=max_tokens)
    return head(job) | {"content": blocks, **end, "usage": usage(job), **job.weights, **job.additions()}


def head(job: Job) -> dict[str, Any]:
    """Build the message before it has any content."""
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
    """Count the tokens so far. Cached tokens are not part of `input_tokens`, and known only at the end."""
    num_cached = job.num_cached_tokens
    return {
        "input_tokens": job.num_prompt_tokens - num_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": num_cached,
        "output_tokens": job.num_completion_tokens,
    }


def ending(job: Job, *, has_called: bool, max_tokens: int) -> dict[str, str | None]:
    """Return why the output ended. A deadline counts as a length limit, like on the other routes."""
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
    """Build the empty block that this part begins."""
    if part.kind == "content":
        return {"type": "text", "text": ""}
    if part.kind == "reasoning":
        return {"type": "thinking", "thinking": "", "signature": ""}  # no signature: there is nothing to prove
    return {"type": "tool_use", "id": "toolu_" + secrets.token_hex(12), "name": part.text, "input": {}}


def _blocks(parts: Iterable[AnswerPart]) -> list[Block]:
    """Build blocks from the parts, joining adjacent parts of one kind."""
    blocks: list[Block] = []
    for part in parts:
        if part.kind == "arguments":
            blocks[-1]["input"] = tool_input(part.text)
        elif part.text:
            blocks.append(opening(part))
            if part.kind != "call":
                blocks[-1]["text" if part.kind == "content" else "thinking"] = part.text
    return blocks
