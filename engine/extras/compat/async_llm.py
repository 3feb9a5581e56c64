"""AsyncLLM: AsyncEngine with the interface of vLLM's class."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from copy import copy
from dataclasses import replace
from typing import Any, Self

from ...config import EngineConfig
from ...core.sampling_params import SamplingParams
from ...errors import InvalidRequestError
from ...language.text.tokenizer import Tokenizer
from ...serving.async_engine import AsyncEngine
from ...serving.input_processor import Prompt
from ...serving.output_processor import TokenTexts
from ...serving.request_output import RequestOutput


class AsyncLLM:
    """Engine for asyncio. The model loads with the first request, in a thread. `engine` is the AsyncEngine."""

    def __init__(self, config: EngineConfig) -> None:
        self.engine = AsyncEngine(config)
        self._starting: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._texts = TokenTexts(None)

    @classmethod
    def from_engine_args(cls, engine_args: EngineConfig) -> Self:
        """Create an engine by vLLM's name of the constructor."""
        return cls(engine_args)

    async def start(self) -> None:
        """Load the model; later calls wait for the first one. Raises ConfigError."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        await asyncio.shield(self._starting)

    async def _start(self) -> None:
        await self.engine.start()
        self._texts = TokenTexts(self.engine.tokenizer)

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        lora_request: Any = None,
        priority: int | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """Yield an output per delta, each with everything so far. Closing the iterator aborts the request.

        Raises like AsyncEngine.generate.
        """
        params = sampling_params.clone()
        if priority is not None:
            params.priority = priority
        if lora_request is not None:
            params.adapter = await self._named(lora_request)
        params = params.clone()  # checks it
        await self.start()
        deltas: asyncio.Queue[Any] = asyncio.Queue()
        submitted = await self.engine.submit(prompt, params, deltas.put_nowait, request_id=request_id)
        output = submitted.output()
        try:
            while not output.finished:
                delta = await deltas.get()
                self._texts.add(delta, output)
                if delta.error is not None:
                    raise delta.error
                yield _snapshot(output)
        finally:
            if not output.finished:
                self.engine.abort(request_id)

    async def _named(self, lora_request: Any) -> str:
        """Return the name of a LoRARequest's adapter, which is loaded first if it is new. Raises."""
        from ..lora.adapters import Adapters  # LoRARequest is of this extra

        await self.start()
        if (adapters := self.engine.part(Adapters)) is None:
            raise InvalidRequestError("lora_request needs enable_lora=True", param="lora_request")
        name: str = await adapters.in_thread(lambda: adapters.name(lora_request))
        return name

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests; unknown or finished ids are ignored."""
        for name in [request_id] if isinstance(request_id, str) else request_id:
            self.engine.abort(name)

    async def get_tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer. Raises InvalidRequestError if it has none."""
        await self.start()
        if self.engine.tokenizer is None:
            raise InvalidRequestError("this model has no tokenizer; give token ids")
        return self.engine.tokenizer

    def shutdown(self) -> None:
        """Stop on the running loop; `async with` and `stop` wait for the end."""
        self._stopping = asyncio.get_running_loop().create_task(self.engine.stop())

    async def stop(self) -> None:
        """Abort all requests, and end all tasks and threads."""
        await self.engine.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


def _snapshot(output: RequestOutput) -> RequestOutput:
    """Return a copy that does not grow."""
    outputs = [replace(item, token_ids=[*item.token_ids], logprobs=copy(item.logprobs)) for item in output.outputs]
    return replace(output, outputs=outputs)
