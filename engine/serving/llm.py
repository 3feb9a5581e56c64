"""LLM, with vLLM's interface: prompts in, finished outputs out, in this thread, at once or as a stream."""

import asyncio
import dataclasses
import itertools
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MethodType
from typing import Any, TypeVar, cast

from ..config import EngineConfig, ResolvedConfig
from ..config.foreign_options import supported_keywords
from ..core.outputs import OutputDelta
from ..core.sampling_params import SamplingParams
from ..errors import InvalidRequestError
from ..extension import declared, refuse_absent
from ..language.text.tokenizer import Tokenizer
from .async_engine import AsyncEngine
from .delta_dispatch import DeltaSink
from .input_processor import Prompt, text_of
from .output_processor import TokenTexts
from .request_output import RequestOutput
from .submitted_request import Resumed, SubmittedRequest

_SETTINGS = frozenset(field.name for field in dataclasses.fields(EngineConfig))
OnDelta = Callable[[OutputDelta], None]
Params = SamplingParams | Sequence[SamplingParams] | None
T = TypeVar("T")


class LLM:
    """Engine for scripts, and a context manager: an offline AsyncEngine whose steps are taken while a call waits.

    Keyword arguments: EngineConfig's, and vLLM's that change nothing here. Extensions add methods, and keywords of
    `generate` and `chat`: server/docs/python.md lists them. Raises ConfigError.
    """

    def __init__(self, model: str | None = None, **settings: Any) -> None:
        refuse_absent(settings)
        config = EngineConfig(**supported_keywords({"model": model, **settings}, _SETTINGS))
        self._engine: AsyncEngine | None = AsyncEngine(config, is_offline=True)
        self._engine.load()
        self._loop = asyncio.new_event_loop()  # runs while a prompt is read, and while weights change
        weakref.finalize(self, self._loop.close)
        self._ids = itertools.count()
        self._lock = threading.RLock()  # held for a step, and while requests are added or aborted
        self._dropped: deque[str] = deque()  # requests to abort whose stream nobody holds any more
        self.tokenizer = self._engine.tokenizer
        self._texts = TokenTexts(self.tokenizer)

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the model's memory and the cache's. Later prompts are refused."""
        with self._lock:
            engine, self._engine = self._engine, None
            if engine is not None:
                engine.extensions.close()
                engine.runner.close()
                vars(engine).clear()  # extensions' states, which know the engine, would keep its memory
                self._loop.close()

    def __getattr__(self, name: str) -> Any:
        """Return a method that an extension declares."""
        for extension in declared():
            if name in extension.calls:
                return MethodType(extension.load(extension.calls[name]), self)
        refuse_absent([name])
        raise AttributeError(f"LLM has no attribute {name!r}", name=name, obj=self)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(name for extension in declared() for name in extension.calls)]

    @property
    def engine(self) -> AsyncEngine:
        """Engine that answers. Raises InvalidRequestError if the LLM is closed."""
        if self._engine is None:
            raise InvalidRequestError("this LLM is closed; make another one")
        return self._engine

    @property
    def config(self) -> ResolvedConfig:
        """Settings that were decided, and facts about the model."""
        return self.engine.config

    @property
    def weights_version(self) -> int:
        """Number of updates of the weights so far."""
        return self.engine.weights_version

    @property
    def is_sleeping(self) -> bool:
        """True between `sleep` and `wake_up`."""
        return self.engine.paused is not None

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a call of the engine to its end, between two steps."""
        with self._lock:
            task = self._loop.create_task(call)
            try:
                if asyncio._get_running_loop() is None:
                    return self._loop.run_until_complete(task)
                with ThreadPoolExecutor(1) as beside:  # a notebook's loop runs in this thread
                    return beside.submit(self._loop.run_until_complete, task).result()
            except BaseException:
                task.cancel()  # Ctrl-C: its next run ends it
                raise

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
        return SamplingParams.from_fields(fields, defaults=self.engine.default_sampling_params)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt] | None = None,
        sampling_params: Params = None,
        use_tqdm: Any = True,
        *,
        prompt_token_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        priority: int | Sequence[int] | None = None,
        on_delta: OnDelta | None = None,
        **fields: Any,
    ) -> list[RequestOutput]:
        """Generate one RequestOutput per prompt, in the order of the prompts.

        A prompt is a string, a list of ids, {"prompt": str} or {"prompt_token_ids": ids}. Give one or a list of them,
        and one SamplingParams for all or one per prompt; or fields of SamplingParams as keywords. Without any:
        `get_default_sampling_params()`. `prompt_token_ids`: prompts as ids, like in older vLLM. `priority`: one, or one
        per prompt. `use_tqdm`: a terminal shows a bar for several prompts. `on_delta` is called with each delta.
        Extensions take further keywords. Raises InvalidRequestError before anything runs, RequestFailedError if a
        request failed.
        """
        many = _prompts(prompts, prompt_token_ids)
        params = self.params_for(many, sampling_params, fields, priority=priority)
        return self._answers(many, params, on_delta, shows_bar=bool(use_tqdm))

    def generate_stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        priority: int | Sequence[int] | None = None,
        **fields: Any,
    ) -> "LLMStream":
        """Like `generate`, but return an iterator of the deltas."""
        many = _prompts(prompts, None)
        return self.begin(many, self.params_for(many, sampling_params, fields, priority=priority))

    def chat(
        self,
        messages: str | Sequence[Any],
        sampling_params: Params = None,
        use_tqdm: Any = True,
        *,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> list[RequestOutput]:
        """Answer a conversation (a list of messages, or the text of one) or many (a list of such lists).

        Prompts are made like in /v1/chat/completions, by `chat_template` or the model's own. The template decides
        whether a prompt shows the tools. `chat_template_content_format` is vLLM's and not read. `fields`:
        SamplingParams' own and the extensions'; fields and errors are `generate`'s.
        """
        prompts = self._rendered(
            messages,
            template=chat_template,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables=chat_template_kwargs,
        )
        return self._answers(prompts, self.params_for(prompts, sampling_params, fields), shows_bar=bool(use_tqdm))

    def chat_stream(
        self,
        messages: str | Sequence[Any],
        sampling_params: Params = None,
        *,
        chat_template: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> "LLMStream":
        """Like `chat`, but return an iterator of the deltas."""
        prompts = self._rendered(messages, template=chat_template, tools=tools, variables=chat_template_kwargs)
        return self.begin(prompts, self.params_for(prompts, sampling_params, fields))

    def _rendered(
        self, messages: str | Sequence[Any], *, tools: Sequence[Mapping[str, Any]] | None, **options: Any
    ) -> list[Prompt]:
        if self.tokenizer is None:
            raise InvalidRequestError("chat needs a tokenizer, and this model has none", param="messages")
        from ..language.chat.messages import read_messages  # here: not every caller has conversations
        from ..language.chat.tools import read_tools

        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        if not isinstance(messages, Sequence):
            reason = f"messages must be a text, a conversation or several, not {type(messages).__name__}"
            raise InvalidRequestError(reason, param="messages")
        conversations = messages if messages and isinstance(messages[0], (list, tuple)) else [messages]
        texts = [
            self.tokenizer.render_chat(read_messages(conversation), tools=read_tools(tools), **options)
            for conversation in conversations
        ]
        return [{"prompt": text, "add_special_tokens": False} for text in texts]

    def params_for(
        self,
        prompts: Sequence[Prompt],
        params: Params,
        fields: Mapping[str, Any],
        *,
        priority: int | Sequence[int] | None = None,
    ) -> list[SamplingParams]:
        """Return a checked copy of the parameters for each prompt. Raises InvalidRequestError."""
        keywords = {name: extension for extension in declared() for name in extension.keywords}
        asked = {name: fields[name] for name in keywords if fields.get(name)}
        fields = {name: value for name, value in fields.items() if name not in keywords}
        refuse_absent(fields)
        if fields and params is not None:
            raise InvalidRequestError(f"give sampling_params or {', '.join(fields)} as keywords, not both")
        own = self.sampling_params(fields) if params is None else params
        several = [own.clone()] * len(prompts) if isinstance(own, SamplingParams) else [item.clone() for item in own]
        check_one_each(prompts, several, "sampling params")
        for name, value in asked.items():
            several = keywords[name].load(keywords[name].keywords[name])(self, several, value)
        if priority is not None:
            priorities = [priority] * len(prompts) if isinstance(priority, int) else list(priority)
            check_one_each(prompts, priorities, "priorities")
            several = [dataclasses.replace(p, priority=rank) for p, rank in zip(several, priorities, strict=True)]
        return several

    def _answers(
        self,
        prompts: Sequence[Prompt],
        params: Sequence[SamplingParams],
        on_delta: OnDelta | None = None,
        *,
        shows_bar: bool = False,
    ) -> list[RequestOutput]:
        """Run requests to their end."""
        stream = self.begin(prompts, params)
        if shows_bar and len(prompts) > 1 and sys.stderr is not None and sys.stderr.isatty():
            from tqdm import tqdm  # here: programs in a pipe show none

            with stream, tqdm(desc="outputs", total=sum(own.n for own in params)) as bar:
                for delta in stream:
                    bar.update(delta.finish_reason is not None)
                    if on_delta is not None:
                        on_delta(delta)
            return stream.outputs
        return stream.joined(on_delta)

    def begin(
        self, prompts: Sequence[Prompt], params: Sequence[SamplingParams], resumed: Resumed | None = None
    ) -> "LLMStream":
        """Add requests. Without a step none of them runs.

        `resumed`: known tokens and seed of each. Raises InvalidRequestError, and then adds none.
        """
        stream = LLMStream(self, self._texts)

        async def submit() -> None:
            for prompt, own in zip(prompts, params, strict=True):
                for part in self.engine.extensions:
                    own = part.params_now(own)
                number = str(next(self._ids))
                submitted = await self.engine.submit(prompt, own, stream.sink, request_id=number, resumed=resumed)
                stream.add(submitted, prompt)

        with self._lock:
            try:
                self.run(submit())
            except BaseException:
                stream.close()
                raise
        return stream

    def step(self, stream: "LLMStream | None" = None) -> None:
        """Take a step for all streams, unless this stream has deltas by now. Raises InvalidRequestError."""
        with self._lock:
            self._abort_dropped()
            if self.is_sleeping:
                raise InvalidRequestError("this LLM sleeps; call wake_up first")
            if self.engine.has_work and not (stream and stream.deltas):
                self.engine.step()
                self._land()

    def _land(self) -> None:
        """Take the steps in flight to their end if no request is left."""
        while self.engine.pipeline.is_busy and not self.engine.num_unfinished:
            self.engine.step()

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests; unknown or finished ids are ignored."""
        self._dropped.extend(request_ids)
        with self._lock:
            if self._engine is not None:
                self._abort_dropped()

    def _abort_dropped(self) -> None:
        while self._dropped:
            self.engine.abort(self._dropped.popleft())
            self._land()


class LLMStream:
    """Iterator of the deltas of one call's requests. `outputs` joins them, one RequestOutput per prompt.

    Steps are taken while somebody iterates a stream of the LLM, and a step serves all streams. An iteration raises
    RequestFailedError if a request failed. Leaving a `with` block, `close`, and dropping the stream abort its requests.
    """

    def __init__(self, llm: LLM, texts: TokenTexts) -> None:
        self.outputs: list[RequestOutput] = []
        self.deltas: deque[OutputDelta] = deque()  # deltas that nobody has read yet
        self._by_id: dict[str, RequestOutput] = {}
        self._num_unfinished = 0
        self._llm, self._texts = llm, texts

    def add(self, submitted: SubmittedRequest, prompt: Prompt) -> None:
        """Add an accepted request."""
        output = self._by_id[submitted.request_id] = submitted.output()
        output.prompt = text_of(prompt)
        self.outputs.append(output)
        self._num_unfinished += len(output.outputs)

    @property
    def sink(self) -> DeltaSink:
        """Sink of its requests' deltas, which does not keep a dropped stream."""
        reference = weakref.ref(self)

        def put(delta: OutputDelta) -> None:
            if (stream := reference()) is not None:
                stream.deltas.append(delta)
                if delta.token_ids:
                    stream.output_of(delta).note_weights(stream._llm.weights_version)

        return put

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
            self._llm.abort(list(self._by_id))

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
    return as_list(cast(Prompt, token_ids if prompts is None else prompts))


def check_one_each(prompts: Sequence[Any], items: Sequence[Any], kind: str) -> None:
    """Raise InvalidRequestError unless there is an item for each prompt."""
    if len(items) != len(prompts):
        raise InvalidRequestError(f"{len(prompts)} prompts but {len(items)} {kind}; give one, or one each")


def as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Return one prompt or several as a list. Raises InvalidRequestError."""
    if not isinstance(prompts, (str, dict, Sequence)):
        reason = f"prompts must be a text, a list of token ids, or a list of these, not {type(prompts).__name__}"
        raise InvalidRequestError(reason, param="prompts")
    is_one = isinstance(prompts, (str, dict)) or (bool(prompts) and isinstance(cast(Sequence[Any], prompts)[0], int))
    return [cast(Prompt, prompts)] if is_one else list(cast(Sequence[Prompt], prompts))
