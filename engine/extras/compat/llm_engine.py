"""LLMEngine: an LLM stepped by hand, with the interface of vLLM's class."""

from collections.abc import Iterable
from typing import Any, Self

from ...config import EngineConfig
from ...config.setting import settings_of
from ...core.sampling_params import SamplingParams
from ...errors import RequestFailedError
from ...serving.input_processor import Prompt
from ...serving.llm import LLM, LLMStream
from ...serving.request_output import RequestOutput
from .output_kind import snapshot


class LLMEngine:
    """Engine for scripts that add requests and take the steps themselves. `llm` is the LLM."""

    def __init__(self, config: EngineConfig) -> None:
        self.llm = LLM(**{name: getattr(config, name) for name in settings_of(EngineConfig)})
        self._streams: dict[str, LLMStream] = {}

    @classmethod
    def from_engine_args(cls, engine_args: EngineConfig) -> Self:
        """Create an engine from EngineArgs."""
        return cls(engine_args)

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        *,
        lora_request: Any = None,
        priority: int | None = None,
    ) -> None:
        """Add a request. Raises InvalidRequestError; ValueError if the request_id is in use."""
        if request_id in self._streams:
            raise ValueError(f"request_id {request_id!r} is in use")
        stream = self.llm.generate_stream(prompt, params, lora_request=lora_request, priority=priority)
        self._streams[request_id] = stream

    def step(self) -> list[RequestOutput]:
        """Take a step. Returns everything so far of each request that has new tokens; `error` says that one failed."""
        self.llm.step()
        outputs: list[RequestOutput] = []
        for request_id, stream in list(self._streams.items()):
            if not stream.deltas:
                continue
            has_failed = False
            try:
                while stream.deltas:
                    next(stream)
            except RequestFailedError:  # the output says so, and the others of this step are returned
                has_failed = True
            output = snapshot(stream.outputs[0])
            output.request_id = request_id
            outputs.append(output)
            if output.finished or has_failed:
                del self._streams[request_id]
        return outputs

    def has_unfinished_requests(self) -> bool:
        """True if a request has not finished."""
        return bool(self._streams)

    def get_num_unfinished_requests(self) -> int:
        """Return the number of unfinished requests."""
        return len(self._streams)

    def abort_request(self, request_id: str | Iterable[str]) -> None:
        """End requests; unknown or finished ids are ignored."""
        for name in [request_id] if isinstance(request_id, str) else list(request_id):
            if (stream := self._streams.pop(name, None)) is not None:
                stream.close()
