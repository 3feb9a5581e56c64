"""Answers of /v1/chat/completions: messages with content, reasoning and tool calls, whole and in deltas."""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ....engine.core.outputs import OutputDelta, TokenLogprobs
from ....engine.language.chat.answer_parser import AnswerParser
from ....engine.language.chat.answer_parts import AnswerPart, read_whole
from ....engine.serving.request_output import CompletionOutput
from ...api.chat.answer_format import AnswerFormat
from ...api.chat.model_text import TokenText, num_reasoning_tokens
from ...api.native.response import prompt_logprobs
from ...http.json_response import dumps, quoted
from ...jobs.job import Job
from .request import Shown
from .response import Head, ResponseBuilder, ending, full_usage, scored_token

# Reasoning has two names: DeepSeek's, which most clients read, and vLLM's newer one.
_NAMES = {"content": ("content",), "reasoning": ("reasoning_content", "reasoning")}


class ChatResponseBuilder(ResponseBuilder):
    """Builder of chat answers. `answer`: the format to split them by. `own_text` returns a single token's text."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(
        self, head: Head, token_text: TokenText, *, shown: Shown, answer: AnswerFormat, own_text: TokenText
    ) -> None:
        super().__init__(head, token_text, shown=shown)
        self._answer = answer
        self._own_text = own_text
        self._readers: dict[int, AnswerParser] = {}  # parser of each streamed choice
        self._calling: set[int] = set()  # choices that have called a tool
        self._custom_calls: dict[int, set[int]] = {}  # numbers of the custom tools' calls of each streamed choice

    def answer(self, jobs: Sequence[Job]) -> dict[str, Any]:
        """Build the whole answer."""
        scores = jobs[0].prompt_logprobs
        more: dict[str, Any] = {} if scores is None else {"prompt_logprobs": prompt_logprobs(scores)}
        if self._shown.token_ids:
            more["prompt_token_ids"] = iter(jobs[0].prompt_token_ids)
        return super().answer(jobs) | more

    def usage(self, jobs: Sequence[Job]) -> dict[str, Any]:
        """Count the answer's tokens, and how many of them were reasoning."""
        count = sum(num_reasoning_tokens(job, self._answer, self._own_text) for job in jobs)
        return full_usage(jobs) | {"completion_tokens_details": {"reasoning_tokens": count}}

    def first_chunk(self, index: int, job: Job) -> str | None:
        """Return a chunk with the role."""
        choice = _chat_choice(index, {"delta": {"role": "assistant", "content": ""}}, None) | {"finish_reason": None}
        ids = f'],"prompt_token_ids":{dumps(job.prompt_token_ids)}' if self._shown.token_ids else "]"
        return self._prefix + dumps(choice) + ids + self._suffix[1:]

    def choice(self, index: int, output: CompletionOutput, job: Job) -> dict[str, Any]:
        """Build a choice with a message."""
        parts = [] if self._answer.is_plain else self._visible(read_whole(self._answer.reader(), output.text))
        message = {"role": "assistant", "content": output.text, "refusal": None}
        if parts or not self._shown.reasoning:
            message |= self._message(parts)
        elif not self._answer.is_plain:
            message["content"] = ""
        return {
            **_chat_choice(index, {"message": message}, self._logprobs(output.logprobs)),
            **self._ending(output, has_called=not message.keys().isdisjoint(("tool_calls", "function_call"))),
        }

    def chunk(self, index: int, delta: OutputDelta, *, text_offset: int, report: Mapping[str, Any]) -> str | None:
        """Build one event's chunk, None while the text is held back because its kind is not clear yet."""
        if self._answer.is_plain:
            return super().chunk(index, delta, text_offset=text_offset, report=report)
        content = self._delta(index, delta)
        is_last = delta.finish_reason is not None
        if not content and not is_last and delta.logprobs is None and not self._shown.token_ids:
            return None
        choice = _chat_choice(index, {"delta": content}, self._logprobs(delta.logprobs)) | self.ids(delta)
        choice["finish_reason"] = None
        if is_last:
            choice |= {**self._ending(delta, has_called=index in self._calling), **report}
        return self._prefix + dumps(choice) + self._suffix

    def chunk_choice(self, index: int, delta: OutputDelta, text_offset: int) -> dict[str, Any]:
        """Build the choice for a delta that is content only."""
        content = {"content": delta.text} if delta.text or delta.token_ids else {}
        return _chat_choice(index, {"delta": content}, self._logprobs(delta.logprobs))

    def plain_choice(self, index: int, text: str) -> str:
        """Return the JSON of a choice with text alone."""
        return f'{{"index":{index},"delta":{{"content":{quoted(text)}}},"logprobs":null,"finish_reason":null}}'

    def _delta(self, index: int, delta: OutputDelta) -> dict[str, Any]:
        reader = self._readers.get(index)
        if reader is None:
            reader = self._readers[index] = self._answer.reader()
        parts = reader.push(delta.text)
        if delta.finish_reason is not None:
            parts += reader.finish()
        if any(part.kind == "call" for part in parts):
            self._calling.add(index)
        return self._shaped(_delta(self._visible(parts)), self._custom_calls.setdefault(index, set()))

    def _shaped(self, message: dict[str, Any], custom_calls: set[int]) -> dict[str, Any]:
        """Put calls of custom tools into their own form. `custom_calls`: their numbers so far."""
        for call in message.get("tool_calls", ()) if self._answer.customs else ():
            if call["function"].get("name") in self._answer.customs:
                custom_calls.add(call["index"])
                call["type"] = "custom"
            if call["index"] in custom_calls:
                function = call.pop("function")
                call["custom"] = {("input" if key == "arguments" else key): text for key, text in function.items()}
        if self._shown.calls_are_older and "tool_calls" in message:
            (call,) = message.pop("tool_calls")
            message["function_call"] = call["function"]
        return message

    def _message(self, parts: Iterable[AnswerPart]) -> dict[str, Any]:
        """Join the parts into keys of a message. Beside reasoning or calls, missing content is null."""
        message = self._shaped(_delta(parts), set())
        for call in message.get("tool_calls", ()):
            del call["index"]
        return {"content": None, **message}

    def _ending(self, output: OutputDelta | CompletionOutput, *, has_called: bool) -> dict[str, Any]:
        end = ending(output)
        called = "function_call" if self._shown.calls_are_older else "tool_calls"
        return end | {"finish_reason": called} if has_called and end["finish_reason"] == "stop" else end

    def _visible(self, parts: list[AnswerPart]) -> list[AnswerPart]:
        return parts if self._shown.reasoning else [part for part in parts if part.kind != "reasoning"]

    def _logprobs(self, items: Sequence[TokenLogprobs] | None) -> dict[str, Any] | None:
        if items is None:
            return None
        return {"content": (scored_token(item, self._token_text) for item in items), "refusal": None}


def new_call_id() -> str:
    """Return a new id for a call; the tool's result refers to it."""
    return "call_" + secrets.token_hex(12)


def _delta(parts: Iterable[AnswerPart]) -> dict[str, Any]:
    """Join the parts into a delta. A call's name comes with its id, its arguments by index alone."""
    delta: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    for part in parts:
        if part.kind in ("content", "reasoning"):
            for name in _NAMES[part.kind]:
                delta[name] = delta.get(name, "") + part.text
        elif part.kind == "call":
            calls[part.number] = _call(part) | {"index": part.number}
        else:
            call = calls.setdefault(part.number, {"index": part.number, "function": {"arguments": ""}})
            call["function"]["arguments"] += part.text
    return delta | {"tool_calls": list(calls.values())} if calls else delta


def _call(part: AnswerPart) -> dict[str, Any]:
    return {"id": new_call_id(), "type": "function", "function": {"name": part.text, "arguments": ""}}


def _chat_choice(index: int, content: dict[str, Any], logprobs: dict[str, Any] | None) -> dict[str, Any]:
    return {"index": index, **content, "logprobs": logprobs}
