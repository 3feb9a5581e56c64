"""LLM, with vLLM's interface: prompts in, finished outputs out, in this thread, at once or as a stream."""

import dataclasses
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakValueDictionary

from ..config import EngineConfig
from ..config.foreign_options import supported_keywords
from ..core.outputs import OutputDelta
from ..core.sampling_params import SamplingParams
from ..errors import InvalidRequestError
from ..extension import load_extra
from ..language.text.tokenizer import Tokenizer
from .builder import load
from .input_processor import Prompt
from .output_processor import TokenTexts
from .request_output import CompletionOutput, RequestOutput
from .wait_prediction import WaitPrediction

if TYPE_CHECKING:
    from torch import Tensor

_SETTINGS = frozenset(field.name for field in dataclasses.fields(EngineConfig))
OnDelta = Callable[[OutputDelta], None]
Params = SamplingParams | Sequence[SamplingParams] | None


class LLM:
    """Engine for scripts, and a context manager.

    Keyword arguments: EngineConfig's, and vLLM's that change nothing here. `receipt_key_file`: private Ed25519 key in
    PEM that signs receipts. Raises ConfigError.
    """

    def __init__(
        self, model: str | None = None, *, receipt_key_file: str | Path | None = None, **settings: Any
    ) -> None:
        wishes = EngineConfig(**supported_keywords({"model": model, **settings}, _SETTINGS))
        self._receipts = None if receipt_key_file is None else self._new_receipts(receipt_key_file)
        parts = load(wishes)
        self.config = parts.config
        self._input_processor = parts.input_processor
        self._ids = itertools.count()
        self._lock = threading.Lock()  # held for a step, and while requests are added or aborted
        self._streams: WeakValueDictionary[str, LLMStream] = WeakValueDictionary()  # by request id
        self._dropped: deque[str] = deque()  # requests to abort whose stream nobody holds any more
        self._runner = parts.runner
        self.tokenizer = parts.tokenizer
        self._texts = TokenTexts(parts.tokenizer)
        self._defaults, self.pooler, self.adapters = parts.default_sampling_params, parts.pooler, parts.adapters
        self._replays = parts.replays()  # expected outputs, which the receipts extra verifies
        self.pipeline = parts.pipeline(replays=self._replays)
        self.core = self.pipeline.core
        self._live: Any = None  # LiveModel, once the weights change or the model sleeps
        self._is_closed = False

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the model's memory and the cache's. Later prompts are refused."""
        with self._lock:
            if not self._is_closed:
                if (disk := getattr(self.core.blocks, "disk", None)) is not None:
                    disk.close()
                self._runner.close()
            self._is_closed = True
            for name in ("pipeline", "core", "_input_processor", "_runner", "_live", "_receipts"):
                self.__dict__.pop(name, None)

    # Other weights, and sleep.

    @property
    def weights_version(self) -> int:
        """Number of updates of the weights so far."""
        return 0 if self._live is None else int(self._live.version)

    @property
    def is_sleeping(self) -> bool:
        """True between `sleep` and `wake_up`."""
        return self._live is not None and bool(self._live.sleep_level)

    def update_weights(self, weights: "str | Path | Iterable[tuple[str, Tensor]]") -> int:
        """Change to all weights of a folder or of tensors by checkpoint name, and return their version.

        Streams go on: their tokens stay, and further tokens follow from the new weights alone. Raises ConfigError; then
        nothing has changed.
        """
        live = self._live_model()
        new = live.load(Path(weights)) if isinstance(weights, (str, Path)) else live.build(weights)
        with self._between_steps():
            version: int = live.take(new, self.core)
            self.config = dataclasses.replace(self.config, fingerprint=new.fingerprint)
        return version

    def sleep(self, level: int = 1) -> None:
        """Give back the memory of the cache, at level 2 that of the weights too. Raises InvalidRequestError."""
        live = self._live_model()
        with self._between_steps():
            live.sleep(level, self.core)

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """End the sleep, or with vLLM's tag "weights" alone that of the weights. Raises ConfigError.

        Weights that were given back are read again.
        """
        live = self._live_model()
        weights = None if tags and "weights" not in tags else live.restored()
        with self._between_steps():
            live.wake_up(weights, is_whole=not tags or "kv_cache" in tags)

    def _live_model(self) -> Any:
        if self._live is None:
            with self._lock:
                self._check_open()
                extra = load_extra("weight_updates.live_model", needed_for="changing weights")
                self._live = extra.LiveModel(self.config, self._runner)
        return self._live

    @contextmanager
    def _between_steps(self) -> Iterator[None]:
        """Hold the steps for a block that begins when none is in flight."""
        with self._lock:
            self._check_open()
            self.pipeline.is_paused = True
            try:
                while self.pipeline.is_busy:
                    self._step()
                yield
            finally:
                self.pipeline.is_paused = False

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
        prompts: Prompt | Sequence[Prompt] | None = None,
        sampling_params: Params = None,
        use_tqdm: Any = False,
        *,
        prompt_token_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        lora_request: Any = None,
        priority: int | Sequence[int] | None = None,
        receipt: bool = False,
        on_delta: OnDelta | None = None,
        **fields: Any,
    ) -> list[RequestOutput]:
        """Generate one RequestOutput per prompt, in the order of the prompts.

        A prompt is a string, a list of ids, {"prompt": str} or {"prompt_token_ids": ids}. Give one or a list of them,
        and one SamplingParams for all or one per prompt; or fields of SamplingParams as keywords. Without any:
        `get_default_sampling_params()`. `prompt_token_ids`: prompts as ids, like in older vLLM. `priority`: one, or one
        per prompt. `lora_request`: a LoRARequest, or one or None per prompt. `use_tqdm` is vLLM's; no bar is shown.
        `receipt`: prove each answer by the `receipt` of its output, which `verify` checks, and a server or `splitfuse
        verify` too. `on_delta` is called with each delta. Raises InvalidRequestError before anything runs,
        RequestFailedError if a request failed.
        """
        many = _prompts(prompts, prompt_token_ids)
        params = self._params_for(
            many, sampling_params, fields, priority=priority, lora_request=lora_request, receipt=receipt
        )
        return self._answers(many, params, on_delta)

    def generate_stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        lora_request: Any = None,
        priority: int | Sequence[int] | None = None,
        **fields: Any,
    ) -> "LLMStream":
        """Like `generate`, but return an iterator of the deltas."""
        many = _prompts(prompts, None)
        params = self._params_for(many, sampling_params, fields, priority=priority, lora_request=lora_request)
        return self._begin(many, params)

    def chat(
        self,
        messages: Sequence[Any],
        sampling_params: Params = None,
        use_tqdm: Any = False,
        *,
        lora_request: Any = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        receipt: bool = False,
        **fields: Any,
    ) -> list[RequestOutput]:
        """Answer a conversation (a list of messages) or many (a list of such lists), with one RequestOutput each.

        Prompts are made like in /v1/chat/completions, by `chat_template` or the model's own. The template decides
        whether a prompt shows the tools. `chat_template_content_format` is vLLM's and not read. `fields`:
        SamplingParams' own. `receipt` and errors: as in `generate`.
        """
        prompts = self._rendered(
            messages,
            template=chat_template,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables=chat_template_kwargs,
        )
        params = self._params_for(prompts, sampling_params, fields, lora_request=lora_request, receipt=receipt)
        return self._answers(prompts, params)

    def chat_stream(
        self,
        messages: Sequence[Any],
        sampling_params: Params = None,
        *,
        chat_template: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> "LLMStream":
        """Like `chat`, but return an iterator of the deltas."""
        prompts = self._rendered(messages, template=chat_template, tools=tools, variables=chat_template_kwargs)
        return self._begin(prompts, self._params_for(prompts, sampling_params, fields))

    def verify(self, receipt: Mapping[str, Any]) -> Any:
        """Check an answer's receipt in one pass over its tokens, and return its Verdict.

        `valid` says if the hash, the signature and every token are right, `mismatch` names the first token that does
        not follow; `to_dict()` is the body of POST /verify. Raises InvalidRequestError if the receipt is malformed or
        of another model, ConfigError if it is signed and the package `cryptography` is missing.
        """
        return self._own_receipts().verify(receipt)

    # Prompts whose states are pooled.

    def embed(self, prompts: Prompt | Sequence[Prompt], pooling_params: Any = None, use_tqdm: Any = False) -> list[Any]:
        """Return one PoolingRequestOutput per prompt, whose `outputs.embedding` is a list of floats.

        `pooling_params`: a PoolingParams, such as PoolingParams(dimensions=256). Raises InvalidRequestError.
        """
        return self.encode(prompts, pooling_params, pooling_task="embed")

    def classify(
        self, prompts: Prompt | Sequence[Prompt], pooling_params: Any = None, use_tqdm: Any = False
    ) -> list[Any]:
        """Like `embed`, for a model with labels: `outputs.probs` is a list of probabilities."""
        return self.encode(prompts, pooling_params, pooling_task="classify")

    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: Any = None,
        use_tqdm: Any = False,
        *,
        pooling_task: str = "token_embed",
    ) -> list[Any]:
        """Pool prompts for a task: embed, classify, or token_embed, whose `outputs.data` has a vector per token."""
        calls = load_extra("pooling.llm_calls", needed_for="LLM.encode")
        outputs: list[Any] = calls.run(self, pooling_task, prompts, pooling_params)
        return outputs

    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        /,
        pooling_params: Any = None,
        use_tqdm: Any = False,
    ) -> list[Any]:
        """Score each of the second texts for the first, or for its own first: `outputs.score`.

        A model without labels scores by the cosine of its embeddings. Raises InvalidRequestError.
        """
        calls = load_extra("pooling.llm_calls", needed_for="LLM.score")
        outputs: list[Any] = calls.score(self, data_1, data_2, pooling_params)
        return outputs

    def _rendered(
        self, messages: Sequence[Any], *, tools: Sequence[Mapping[str, Any]] | None, **options: Any
    ) -> list[Prompt]:
        if self.tokenizer is None:
            raise InvalidRequestError("chat needs a tokenizer, and this model has none", param="messages")
        from ..language.chat.messages import read_messages  # here: not every caller has conversations
        from ..language.chat.tools import read_tools

        conversations = messages if messages and isinstance(messages[0], (list, tuple)) else [messages]
        texts = [
            self.tokenizer.render_chat(read_messages(conversation), tools=read_tools(tools), **options)
            for conversation in conversations
        ]
        return [{"prompt": text, "add_special_tokens": False} for text in texts]

    def _params_for(
        self,
        prompts: Sequence[Prompt],
        params: Params,
        fields: Mapping[str, Any],
        *,
        priority: int | Sequence[int] | None = None,
        lora_request: Any = None,
        receipt: bool = False,
    ) -> list[SamplingParams]:
        """Return a checked copy of the parameters for each prompt. Raises InvalidRequestError."""
        if fields and params is not None:
            raise InvalidRequestError(f"give sampling_params or {', '.join(fields)} as keywords, not both")
        own = self.sampling_params(fields) if params is None else params
        several = [own.clone()] * len(prompts) if isinstance(own, SamplingParams) else [item.clone() for item in own]
        _check_one_each(prompts, several, "sampling params")
        if receipt:
            several = [dataclasses.replace(item, wants_receipt=True) for item in several]
        if lora_request is not None:
            several = self._with_adapters(several, lora_request)
        if priority is None:
            return several
        priorities = [priority] * len(prompts) if isinstance(priority, int) else list(priority)
        _check_one_each(prompts, priorities, "priorities")
        return [dataclasses.replace(p, priority=rank) for p, rank in zip(several, priorities, strict=True)]

    def _with_adapters(self, params: Sequence[SamplingParams], lora_request: Any) -> list[SamplingParams]:
        if self.adapters is None:
            raise InvalidRequestError("lora_request needs LLM(enable_lora=True)", param="lora_request")
        requests = list(lora_request) if isinstance(lora_request, (list, tuple)) else [lora_request] * len(params)
        _check_one_each(params, requests, "LoRA requests")
        return [
            item if request is None else self.adapters.request(request).params(item)
            for item, request in zip(params, requests, strict=True)
        ]

    def _own_receipts(self) -> Any:
        self._check_open()
        if self._receipts is None:
            self._receipts = self._new_receipts(None)
        return self._receipts

    def _new_receipts(self, key_file: str | Path | None) -> Any:
        return load_extra("receipts.llm_receipts", needed_for="LLM receipts").LLMReceipts(self, key_file)

    def _answers(
        self, prompts: Sequence[Prompt], params: Sequence[SamplingParams], on_delta: OnDelta | None = None
    ) -> list[RequestOutput]:
        """Run requests to their end, and give each its receipt if it wants one."""
        maker = self._own_receipts().maker() if any(item.wants_receipt for item in params) else None
        outputs = self._begin(prompts, params, maker).joined(on_delta)
        if maker is not None:
            maker.add_to(outputs, model=self.config.model_name)
        return outputs

    def _begin(self, prompts: Sequence[Prompt], params: Sequence[SamplingParams], observer: Any = None) -> "LLMStream":
        """Add requests, which the observer notes. Without a step none of them runs.

        Raises InvalidRequestError, and then adds none.
        """
        outputs: list[RequestOutput] = []
        with self._lock:
            self._check_open()
            try:
                outputs.extend(self._add(*item, observer) for item in zip(prompts, params, strict=True))
            except BaseException:
                self._dropped.extend(output.request_id for output in outputs)
                self._abort_dropped()
                raise
            stream = LLMStream(self, outputs, self._texts)
            self._streams.update((output.request_id, stream) for output in outputs)
            return stream

    def _add(self, prompt: Prompt, params: SamplingParams, observer: Any) -> RequestOutput:
        request_id = str(next(self._ids))
        tokenized = self._input_processor.tokenize(prompt, params)
        requests = self._input_processor.requests(request_id, tokenized, now=time.monotonic())
        if (disk := getattr(self.core.blocks, "disk", None)) is not None:
            disk.fetch_now(tokenized.token_ids, tenant="", salt=params.cache_salt)
        self.core.add(requests, predicted_ttft=WaitPrediction(self.core).predicted_ttft(requests[0]))
        if observer is not None:
            observer.note(requests)
        return RequestOutput(
            request_id=request_id,
            prompt=prompt.get("prompt") if isinstance(prompt, Mapping) else prompt if isinstance(prompt, str) else None,
            prompt_token_ids=requests[0].token_ids[: requests[0].num_prompt_tokens],
            outputs=[CompletionOutput(index) for index in range(params.n)],
        )

    def step(self, stream: "LLMStream | None" = None) -> None:
        """Take a step for all streams, unless this stream has deltas by now. Raises InvalidRequestError."""
        with self._lock:
            self._check_open()
            self._abort_dropped()
            if self.is_sleeping:
                raise InvalidRequestError("this LLM sleeps; call wake_up first")
            if self.pipeline.has_work and not (stream and stream.deltas):
                self._step()
                self._land()

    def _check_open(self) -> None:
        if self._is_closed:
            raise InvalidRequestError("this LLM is closed; make another one")

    def _land(self) -> None:
        """Take the steps in flight to their end if no request is left."""
        while self.pipeline.is_busy and not self.core.num_unfinished:
            self._step()

    def _step(self) -> None:
        for delta in self.pipeline.step().deltas:
            stream = self._streams.get(delta.request_id)
            if stream is not None:
                stream.deltas.append(delta)
                if delta.token_ids:
                    stream.output_of(delta).note_weights(self.weights_version)

    def _abort(self, request_ids: Sequence[str]) -> None:
        self._dropped.extend(request_ids)
        with self._lock:
            if not self._is_closed:
                self._abort_dropped()

    def _abort_dropped(self) -> None:
        if not self._dropped:
            return
        while self._dropped:
            self.core.abort(self._dropped.popleft())
        self._land()


class LLMStream:
    """Iterator of the deltas of one call's requests. `outputs` joins them, one RequestOutput per prompt.

    Steps are taken while somebody iterates a stream of the LLM, and a step serves all streams. An iteration raises
    RequestFailedError if a request failed. Leaving a `with` block, `close`, and dropping the stream abort its requests.
    """

    def __init__(self, llm: LLM, outputs: list[RequestOutput], texts: TokenTexts) -> None:
        self.outputs = outputs
        self.deltas: deque[OutputDelta] = deque()  # deltas that nobody has read yet
        self._by_id = {output.request_id: output for output in outputs}
        self._num_unfinished = sum(len(output.outputs) for output in outputs)
        self._llm = llm
        self._texts = texts

    def __iter__(self) -> Iterator[OutputDelta]:
        return self

    def __next__(self) -> OutputDelta:
        if not self._num_unfinished:
            raise StopIteration
        try:
            while not self.deltas:
                self._llm.step(self)
        except BaseException:
            self.close()
            raise
        delta = self.deltas.popleft()
        self._texts.add(delta, self.output_of(delta))
        self._num_unfinished -= delta.finish_reason is not None
        if delta.error is not None:
            self.close()
            raise delta.error
        return delta

    def output_of(self, delta: OutputDelta) -> RequestOutput:
        """Return the output that a delta belongs to."""
        return self._by_id[delta.request_id]

    def joined(self, on_delta: OnDelta | None = None) -> list[RequestOutput]:
        """Iterate to the end and return the outputs."""
        with self:
            for delta in self:
                if on_delta is not None:
                    on_delta(delta)
        return self.outputs

    def close(self) -> None:
        """Abort the requests that have not finished, and end the iteration."""
        if self._num_unfinished:
            self._num_unfinished = 0
            self._llm._abort(list(self._by_id))

    def __enter__(self) -> "LLMStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self._num_unfinished:  # no lock here: this thread may hold it
            self._llm._dropped.extend(self._by_id)


def _prompts(
    prompts: Prompt | Sequence[Prompt] | None, token_ids: Sequence[int] | Sequence[Sequence[int]] | None
) -> list[Prompt]:
    if (prompts is None) == (token_ids is None):
        raise InvalidRequestError("give prompts or prompt_token_ids, one of the two", param="prompts")
    return _as_list(cast(Prompt, token_ids if prompts is None else prompts))


def _check_one_each(prompts: Sequence[Any], items: Sequence[Any], kind: str) -> None:
    if len(items) != len(prompts):
        raise InvalidRequestError(f"{len(prompts)} prompts but {len(items)} {kind}; give one, or one each")


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    is_one = isinstance(prompts, (str, dict)) or (bool(prompts) and isinstance(cast(Sequence[Any], prompts)[0], int))
    return [cast(Prompt, prompts)] if is_one else list(cast(Sequence[Prompt], prompts))
