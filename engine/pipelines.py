"""`pipeline`: prompts in, responses out, in DeepSpeed-MII's shape, over an LLM."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .llm import LLM
from .sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Response:
    """One answer; lengths in tokens."""

    generated_text: str
    prompt_length: int
    generated_length: int
    finish_reason: str | None

    def __str__(self) -> str:
        return self.generated_text


class Pipeline:
    """Call it with a prompt or a list of them; what comes back is always a list."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm

    def __call__(
        self, prompts: str | Sequence[str], *, max_new_tokens: int | None = None, **fields: Any
    ) -> list[Response]:
        """`fields` are SamplingParams' own. Raises InvalidRequestError."""
        params = SamplingParams.from_fields({"max_tokens": max_new_tokens, **fields})
        outputs = self.llm.generate([prompts] if isinstance(prompts, str) else list(prompts), params)
        return [
            Response(done.text, len(output.prompt_token_ids), len(done.token_ids), done.finish_reason)
            for output in outputs
            for done in output.outputs
        ]


def pipeline(model: str | None = None, **settings: Any) -> Pipeline:
    """A pipeline on a model folder or hub id. Settings are EngineConfig's. Raises ConfigError."""
    return Pipeline(LLM(model, **settings))
