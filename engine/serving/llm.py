"""LLM, with vLLM's interface: prompts in, finished outputs out, in this thread; `pipeline` with DeepSpeed-MII's."""

import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from ..config import EngineConfig
from ..config.foreign_options import taken_keywords
from ..core.outputs import OutputDelta
from ..core.sampling_params import SamplingParams
from ..errors import InvalidRequestError
from ..extension import load_extra
from ..text.tokenizer import Tokenizer
from .builder import load
from .input_processor import Prompt
from .request_output import CompletionOutput, RequestOutput
from .wait_prediction import WaitPrediction

_SETTINGS = frozenset(field.name for field in dataclasses.fields(EngineConfig))
OnDelta = Callable[[OutputDelta], None]


class LLM:
    """Engine for scripts, and a context manager.

    Keyword arguments: EngineConfig's, and vLLM's that change nothing here. Raises ConfigError.
    """

    def __init__(self, model: str | None = None, **settings: Any) -> None:
        self.config = EngineConfig(**taken_keywords({"model": model, **settings}, _SETTINGS))
        parts = load(self.config)
        self._input_processor = parts.input_processor
        self._ids = itertools.count()
        self._lock = threading.Lock()  # held by the call that takes the steps
        self._runner = parts.runner
        self.tokenizer = parts.tokenizer
        self._defaults = parts.default_sampling_params
        self.pipeline = parts.pipeline(self.config)
        self.core = self.pipeline.core
        self._is_closed = False

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the model's memory and the cache's. Later prompts are refused."""
        with self._lock:
            if not self._is_closed:
                self._runner.close()
            self._is_closed = True
            for name in ("pipeline", "core", "_input_processor", "_runner"):
                self.__dict__.pop(name, None)

    def get_tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer. Raises InvalidRequestError if it has none."""
        if self.tokenizer is None:
            raise InvalidRequestError("this model has no tokenizer; give token ids")
        return self.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the parameters of a prompt without its own: the model's, see --generation-config."""
        return self.sampling_params({})

    def sampling_params(self, fields: Mapping[str, Any]) -> SamplingParams:
        """Build parameters, with the model's values of absent fields. Raises InvalidRequestError."""
        return SamplingParams.from_fields(fields, defaults=self._defaults)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = False,
        *,
        on_delta: OnDelta | None = None,
    ) -> list[RequestOutput]:
        """Generate one RequestOutput per prompt, in the order of the prompts.

        A prompt is a string, a list of ids, {"prompt": str} or {"prompt_token_ids": ids}. Give one or a list of them,
        and one SamplingParams for all or one per prompt; None: `get_default_sampling_params()`. `use_tqdm` is vLLM's;
        no bar is shown. `on_delta` is called with each delta. Raises InvalidRequestError before anything runs,
        RequestFailedError if a request failed.
        """
        with self._lock:
            return self._generate(_as_list(prompts), sampling_params, on_delta)

    def chat(
        self,
        messages: Sequence[Any],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = False,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer a conversation (a list of messages) or many (a list of such lists), with one RequestOutput each.

        Prompts are made like in /v1/chat/completions, by `chat_template` or the model's own. The template decides
        whether a prompt shows the tools. Raises like `generate`.
        """
        if self.tokenizer is None:
            raise InvalidRequestError("chat needs a tokenizer, and this model has none", param="messages")
        conversations = messages if messages and isinstance(messages[0], (list, tuple)) else [messages]
        texts = [
            self.tokenizer.render_chat(
                load_extra("chat.messages", needed_for="LLM.chat").read_messages(conversation),
                template=chat_template,
                tools=load_extra("chat.tools", needed_for="LLM.chat").read_tools(tools),
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                variables=chat_template_kwargs,
            )
            for conversation in conversations
        ]
        prompts = [self.tokenizer.encode(text, add_special_tokens=False) for text in texts]
        with self._lock:
            return self._generate(list(prompts), sampling_params)

    def _generate(
        self,
        many: list[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        on_delta: OnDelta | None = None,
    ) -> list[RequestOutput]:
        if self._is_closed:
            raise InvalidRequestError("this LLM is closed; make another one")
        default = self.get_default_sampling_params()
        params = _params_for(many, default if sampling_params is None else sampling_params)
        outputs = [self._add(prompt, own_params) for prompt, own_params in zip(many, params, strict=True)]
        by_id = {output.request_id: output for output in outputs}
        try:
            while self.pipeline.has_work:
                for delta in self.pipeline.step().deltas:
                    by_id[delta.request_id].add(delta)
                    if delta.error is not None:
                        raise delta.error
                    if on_delta is not None:
                        on_delta(delta)
        finally:
            self.core.abort_all()  # does nothing unless this call leaves early
            while self.pipeline.is_busy:
                self.pipeline.step()
        for output in outputs:
            metrics = output.outputs[0].metrics
            output.num_cached_tokens = metrics.num_cached_tokens if metrics else 0
        return outputs

    def _add(self, prompt: Prompt, params: SamplingParams) -> RequestOutput:
        request_id = str(next(self._ids))
        try:
            tokenized = self._input_processor.tokenize(prompt, params)
            requests = self._input_processor.requests(request_id, tokenized, now=time.monotonic())
        except InvalidRequestError:
            self.core.abort_all()
            raise
        self.core.add(requests, predicted_ttft=WaitPrediction(self.core).predicted_ttft(requests[0]))
        return RequestOutput(
            request_id=request_id,
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_token_ids=requests[0].token_ids[: requests[0].num_prompt_tokens],
            outputs=[CompletionOutput(index) for index in range(params.n)],
        )


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    is_one = isinstance(prompts, (str, dict)) or (bool(prompts) and isinstance(cast(Sequence[Any], prompts)[0], int))
    return [cast(Prompt, prompts)] if is_one else list(cast(Sequence[Prompt], prompts))


def _params_for(prompts: list[Prompt], params: SamplingParams | Sequence[SamplingParams]) -> list[SamplingParams]:
    if isinstance(params, SamplingParams):
        return [params] * len(prompts)
    if len(params) != len(prompts):
        raise InvalidRequestError(f"{len(prompts)} prompts but {len(params)} sampling params; give one, or one each")
    return list(params)


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
