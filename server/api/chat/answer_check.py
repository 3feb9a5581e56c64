"""Schema checks on complete answers, for keywords that no grammar enforces, and the fields that report them."""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....engine.core.sampling_params import SamplingParams
from ....engine.language.chat.answer_parts import AnswerPart, read_whole
from ....engine.language.structured_output.enforceable import Unenforced, enforceable
from ....engine.language.structured_output.schema_check import CannotCheckError, SchemaError, schema_errors
from ....engine.language.structured_output.schemas.schema_walker import LARGE_CHARS, WALKER
from ....engine.language.structured_output.schemas.static_schema import static_schema
from ....engine.language.structured_output.to_llguidance import read_schema, walk_errors
from ....engine.serving.request_output import CompletionOutput
from ...http.response_middleware import listed
from .answer_format import AnswerFormat


@dataclass(frozen=True, kw_only=True)
class AnswerCheck:
    """JSON schemas of one request: the content's schema, or the schemas of tools that must be called.

    A job keeps it as JSON.
    """

    schema: Any  # the content's schema; None: check the calls
    answer: AnswerFormat
    unenforced: tuple[Unenforced, ...]  # keywords that the grammar does not enforce; in tools after the tool's name

    @classmethod
    async def of(cls, params: SamplingParams, answer: AnswerFormat) -> "AnswerCheck | None":
        """Return the check for answers to these parameters, None if the grammar enforces everything.

        Raises InvalidRequestError.
        """
        outputs = params.structured_outputs
        is_json = outputs is not None and outputs.kind == "json"
        content = read_schema(outputs) if outputs is not None and is_json else None
        with walk_errors(outputs):
            text = str(outputs.json) if outputs is not None and is_json else None
            walked = {name: await _walked(schema, text) for name, schema in _schemas(content, answer).items()}
        unenforced = tuple(_named(walked))
        return cls(schema=content, answer=answer, unenforced=unenforced) if unenforced else None

    @classmethod
    def again(cls, schema: Any, answer: AnswerFormat) -> "AnswerCheck | None":
        """Return the check of a stored request, like `of`."""
        walked = {name: enforceable(schema).unenforced for name, schema in _schemas(schema, answer).items()}
        unenforced = tuple(_named(walked))
        return cls(schema=schema, answer=answer, unenforced=unenforced) if unenforced else None

    @property
    def check(self) -> "AnswerCheck":
        """This check itself, for jobs that keep it as their attachment."""
        return self

    @property
    def header(self) -> str:
        """Value of X-Unenforced: the paths, cut at 1,024 characters."""
        return listed(keyword.path for keyword in self.unenforced)

    @property
    def num_bytes(self) -> int:
        """Approximate size in memory."""
        return 2 * len(json.dumps(self.schema))

    def to_dict(self) -> dict[str, Any]:
        """Return the check as JSON values, to be kept with a job."""
        return {"schema": self.schema}

    def report(self, output: CompletionOutput) -> dict[str, Any]:
        """Return the fields that report the check beside a complete output."""
        unenforced = [{"path": e.path, "keyword": e.keyword, "checked": e.is_checked} for e in self.unenforced]
        return {"x_unenforced": unenforced, "x_schema_errors": self._errors(output.text)}

    def _errors(self, text: str) -> list[dict[str, str]] | None:
        """Return the violations in the text, None if checking is not possible."""
        try:
            return [{"path": error.path, "keyword": error.keyword} for error in self._broken(text)]
        except CannotCheckError:
            return None

    def _broken(self, text: str) -> Iterator[SchemaError]:
        parts = [AnswerPart("content", text)] if self.answer.is_plain else read_whole(self.answer.reader(), text)
        if self.schema is not None:
            content = "".join(part.text for part in parts if part.kind == "content")
            yield from schema_errors(static_schema(self.schema).schema, content)
            return
        schemas = _schemas(None, self.answer)
        arguments = {part.number: part.text for part in parts if part.kind == "arguments"}
        for call in (part for part in parts if part.kind == "call" and part.text not in self.answer.customs):
            schema = static_schema(schemas.get(call.text, True)).schema
            for error in schema_errors(schema, arguments.get(call.number, "{}")):
                yield SchemaError(f"/{call.text}{error.path}", error.keyword)


def _schemas(content: Any, answer: AnswerFormat) -> dict[str, Any]:
    """Return the schema of each tool by its name; of the content, the name is empty."""
    if content is not None:
        return {"": content}
    functions = [tool["function"] for tool in answer.tools if answer.is_forced]
    return {function["name"]: function.get("parameters") or True for function in functions}


async def _walked(schema: Any, text: str | None) -> tuple[Unenforced, ...]:
    """Return the keywords that the grammar does not enforce. `text`: the schema's, if there is one already."""
    text = json.dumps(schema) if text is None else text
    if len(text) <= LARGE_CHARS:
        return enforceable(schema).unenforced
    # Other requests may wait for the same schema: cancelling one of them must not cancel the walk.
    return (await asyncio.shield(asyncio.wrap_future(WALKER.walk(text)))).unenforced


def _named(walked: Mapping[str, Sequence[Unenforced]]) -> Iterator[Unenforced]:
    for name, keywords in walked.items():
        for keyword in keywords:
            yield Unenforced(f"/{name}{keyword.path}" if name else keyword.path, keyword.is_checked)


class AnswerChecks:
    """Maker of checks of plain answers, for routes that know nothing of conversations."""

    @staticmethod
    async def of(params: SamplingParams) -> AnswerCheck | None:
        """Make the check of answers to these parameters; None if the grammar does all. Raises InvalidRequestError."""
        return await AnswerCheck.of(params, AnswerFormat())

    @staticmethod
    def read(stored: Mapping[str, Any]) -> AnswerCheck | None:
        """Make the check again that was kept as a dict."""
        return AnswerCheck.again(stored["schema"], AnswerFormat())
