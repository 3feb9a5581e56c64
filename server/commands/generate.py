"""`splitfuse generate` and `splitfuse chat`: the engine in this process, the answer streamed to the terminal."""

import asyncio
import contextlib
import importlib
import signal
import sys
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, cast

from ...engine.errors import ConfigError, SplitfuseError
from ...engine.outputs import OutputDelta
from ...engine.sampling_params import SamplingParams
from ..settings import Settings

if TYPE_CHECKING:
    from ...engine.tokenizer.tokenizer import Tokenizer

INTERRUPTED = 130


def generate(settings: Settings, *, prompt: str, params: SamplingParams) -> int:
    """Print what follows the prompt. Ctrl-C stops."""
    with _Session(settings) as session:
        try:
            session.answer(prompt, params)
        except KeyboardInterrupt:
            print()
            return INTERRUPTED
    return 0


def chat(settings: Settings, *, params: SamplingParams) -> int:
    """A conversation. Ctrl-C stops an answer, Ctrl-D ends."""
    with _Session(settings) as session:
        tokenizer = session.engine.tokenizer
        if tokenizer is None or not tokenizer.has_chat_template:
            raise ConfigError(f"{settings.model_name} has no chat template; use `splitfuse generate`")
        with contextlib.suppress(ImportError):
            importlib.import_module("readline")  # from now on input() edits lines
        print(f"{settings.model_name}: Ctrl-C stops an answer, Ctrl-D ends", file=sys.stderr)
        messages: list[dict[str, str]] = []
        while (text := _read_line()) is not None:
            if text.strip():
                _answer(session, tokenizer, messages, text, params)
    return 0


def _answer(
    session: "_Session", tokenizer: "Tokenizer", messages: list[dict[str, str]], text: str, params: SamplingParams
) -> None:
    messages.append({"role": "user", "content": text})
    try:
        prompt = tokenizer.encode(tokenizer.render_chat(messages), add_special_tokens=False)
        messages.append({"role": "assistant", "content": session.answer(prompt, params)})
    except KeyboardInterrupt:
        print()
        messages.append({"role": "assistant", "content": session.answered})
    except SplitfuseError as exc:
        messages.pop()
        print(f"splitfuse: error: {exc}", file=sys.stderr)


def _read_line() -> str | None:
    """What the user types; an empty string after Ctrl-C, None after Ctrl-D."""
    try:
        return input("> " if sys.stdin.isatty() else "")
    except KeyboardInterrupt:
        print()
        return ""
    except EOFError:
        return None


class _Session:
    """An engine that lives as long as the `with` block. The event loop runs only while an answer is awaited."""

    def __init__(self, settings: Settings) -> None:
        from ...engine.async_engine import AsyncEngine

        self.answered = ""
        self.engine: AsyncEngine = AsyncEngine(settings.engine_config())
        self._runner = asyncio.Runner()

    def __enter__(self) -> "_Session":
        try:
            self._runner.run(self.engine.start())
        except BaseException:
            self._runner.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._runner.run(self.engine.stop())
        self._runner.close()

    def answer(self, prompt: str | list[int], params: SamplingParams) -> str:
        """Print the answer as it comes, and return it. Ctrl-C raises KeyboardInterrupt; `answered` holds what came."""
        self.answered = ""
        try:
            self._runner.run(self._print_answer(prompt, params))
        except asyncio.CancelledError as exc:
            raise KeyboardInterrupt from exc
        print()
        return self.answered

    async def _print_answer(self, prompt: str | list[int], params: SamplingParams) -> None:
        task = asyncio.current_task()
        assert task is not None
        # Python's own handler could raise KeyboardInterrupt in the engine's task instead of this one. Windows has none.
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)
        try:
            deltas = cast(AsyncGenerator[OutputDelta, None], self.engine.generate(prompt, params))
            async with contextlib.aclosing(deltas):
                async for delta in deltas:
                    self.answered += delta.text
                    print(delta.text, end="", flush=True)
        finally:
            with contextlib.suppress(NotImplementedError):
                asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
