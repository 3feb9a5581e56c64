"""Pipeline: DeepSpeed-MII's interface to an LLM."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...core.outputs import OutputDelta
from ...serving.llm import LLM


@dataclass(frozen=True, slots=True)
class Response:
    """Answer to a prompt. Lengths are in tokens."""

    generated_text: str
    prompt_length: int
    generated_length: int
    finish_reason: str | None

    def __str__(self) -> str:
        return self.generated_text


class Pipeline:
    """Callable with a prompt or a list of prompts, which always returns a list."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm

    def __call__(
        self,
        prompts: str | Sequence[str],
        *,
        max_new_tokens: int | None = None,
        min_new_tokens: int | None = None,
        do_sample: bool = True,
        return_full_text: bool = False,
        streaming_fn: Callable[[list[Response]], None] | None = None,
        **fields: Any,
    ) -> list[Response]:
        """Answer prompts. `do_sample`: False is greedy. `return_full_text`: puts the prompt before the answer.
        `streaming_fn`: called with the new part of an output, in a list. `fields`: SamplingParams' own.
        Raises InvalidRequestError.
        """
        fields = {"max_tokens": max_new_tokens, "min_tokens": min_new_tokens, **fields}
        params = self.llm.sampling_params(fields if do_sample else {**fields, "temperature": 0.0})
        on_delta = None if streaming_fn is None else partial(_stream, streaming_fn)
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        outputs = self.llm.generate(texts, params, on_delta=on_delta)
        return [
            Response(
                text + completion.text if return_full_text else completion.text,
                len(output.prompt_token_ids),
                len(completion.token_ids),
                completion.finish_reason,
            )
            for text, output in zip(texts, outputs, strict=True)
            for completion in output.outputs
        ]

    def destroy(self) -> None:
        """Free the model's memory."""
        self.llm.close()


def _stream(streaming_fn: Callable[[list[Response]], None], delta: OutputDelta) -> None:
    num_prompt_tokens = delta.metrics.num_prompt_tokens if delta.metrics else 0
    streaming_fn([Response(delta.text, num_prompt_tokens, len(delta.token_ids), delta.finish_reason)])


def pipeline(model: str | None = None, **settings: Any) -> Pipeline:
    """Create a pipeline on a model folder or hub id. Settings are EngineConfig's. Raises ConfigError."""
    return Pipeline(LLM(model, **settings))
