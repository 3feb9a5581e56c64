"""Session: an engine in this process whose answers are streamed."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, cast

from ....engine.core.outputs import OutputDelta, RequestMetrics
from ....engine.core.sampling_params import SamplingParams
from ....engine.execution.build_announcement import announce_build
from ...process.stop_signals import StopSignals
from ...server_settings import ServerSettings


class Session:
    """Engine that lives as long as the `with` block. The event loop runs only while an answer is awaited."""

    def __init__(self, settings: ServerSettings) -> None:
        config = settings.engine_config()
        announce_build(config.device, config.model)
        self.metrics: RequestMetrics | None = None  # last answer's, once it has ended
        with StopSignals(signal.SIGINT):  # imports, too: some of them drop a KeyboardInterrupt
            from ....engine.serving.async_engine import AsyncEngine

            self.engine: AsyncEngine = AsyncEngine(config)
        self._runner = asyncio.Runner()

    def __enter__(self) -> "Session":
        try:
            with StopSignals(signal.SIGINT):
                self._runner.run(self.engine.start())
        except BaseException:
            self._runner.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._runner.run(self.engine.stop())
        self._runner.close()

    def params(self, fields: Mapping[str, Any], **internal: Any) -> SamplingParams:
        """Build parameters, with the model's values of absent fields; `internal` like SamplingParams.from_fields."""
        return SamplingParams.from_fields(fields, defaults=self.engine.default_sampling_params, **internal)

    def answer(self, prompt: str | list[int], params: SamplingParams, show: Callable[[str], None]) -> None:
        """Call `show` with each part of the answer as it arrives. Ctrl-C raises KeyboardInterrupt."""
        self.metrics = None
        try:
            self._runner.run(self._show_answer(prompt, params, show))
        except asyncio.CancelledError as exc:
            raise KeyboardInterrupt from exc

    async def _show_answer(self, prompt: str | list[int], params: SamplingParams, show: Callable[[str], None]) -> None:
        task = asyncio.current_task()
        assert task is not None
        # Python's own handler could raise KeyboardInterrupt in the engine's task. Windows has no such handlers.
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)
        try:
            deltas = cast(AsyncGenerator[OutputDelta, None], self.engine.generate(prompt, params))
            async with contextlib.aclosing(deltas):
                async for delta in deltas:
                    self.metrics = delta.metrics
                    show(delta.text)
        finally:
            with contextlib.suppress(NotImplementedError):
                asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
