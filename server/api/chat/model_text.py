"""ModelText: text to token ids and back, by the tokenizer of the served model."""

from codecs import getincrementaldecoder
from collections.abc import Callable
from typing import NamedTuple

from ...jobs.job import Job
from ...service import Service
from .answer_format import AnswerFormat


class ShownToken(NamedTuple):
    """One token in logprobs. Its text is incomplete where its bytes are no whole characters."""

    text: str
    raw: bytes


TokenText = Callable[[int], ShownToken]


class ModelText:
    """The tokenizer behind a service. Raises InvalidRequestError where the model has none."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def token(self, token_id: int) -> str:
        """Return the text of one token alone, special tokens too."""
        return self._service.tokenizer.decode([token_id], skip_special_tokens=False)

    def shown(self, token_id: int) -> ShownToken:
        """Return the text and the bytes of one token alone."""
        from ....engine.language.text.tokenizer import token_bytes  # here: for logprobs alone

        text = self.token(token_id)
        return ShownToken(text, token_bytes(self._service.tokenizer, token_id, text))

    def prompt(self, job: Job) -> str:
        """Return the prompt of a job that keeps it; one that came as ids or was truncated is decoded."""
        if job.prompt is not None:
            return job.prompt
        return self._service.tokenizer.decode(job.prompt_token_ids, skip_special_tokens=False)

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text, found off the loop."""
        _ = self._service.tokenizer  # raises
        return await self._service.engine.prompts.encode(text, add_special_tokens=add_special_tokens)

    async def decode(self, token_ids: list[int]) -> str:
        """Return the text of token ids, special tokens included."""
        _ = self._service.tokenizer  # raises
        return await self._service.engine.prompts.decode(token_ids)


def num_reasoning_tokens(job: Job, answer: AnswerFormat, token_text: TokenText) -> int:
    """Count the tokens up to the end of the reasoning, over all outputs, whichever of them came together."""
    count = 0
    for output in job.outputs if answer.reasoning is not None else ():
        reader, decoder = answer.reader(), getincrementaldecoder("utf-8")("replace")
        for token_id in output.token_ids:
            reader.push(decoder.decode(token_text(token_id).raw))
            count += reader.is_thinking
    return count
