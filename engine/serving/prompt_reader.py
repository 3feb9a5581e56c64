"""PromptReader: reads and renders prompts in threads beside the event loop, within the limits of the queue."""

import contextlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, TypeVar

from ..core.engine_core import EngineCore
from ..core.policies import num_interactive
from ..core.sampling_params import SamplingParams
from ..errors import InvalidRequestError, UnavailableError
from ..extension import importing_for
from ..language.text.tokenizer import Tokenizer
from ..language.workers.input_threads import InputThreads
from .input_processor import InputProcessor, Prompt, TokenizedPrompt, length_of
from .queue_limits import QueueLimits
from .wait_prediction import WaitPrediction

_T = TypeVar("_T")
_log = logging.getLogger("splitfuse.engine")
_ASK = '{"asks_form": true}'  # in place of a conversation


class PromptReader:
    """Tokenizer and chat template of one engine. Raises QueueFullError, UnavailableError."""

    def __init__(
        self,
        core: EngineCore,
        input_processor: InputProcessor,
        tokenizer: Tokenizer | None,
        limits: QueueLimits,
        threads: InputThreads,
    ) -> None:
        self._core = core
        self._input_processor = input_processor
        self._tokenizer = tokenizer
        self._limits = limits
        self._threads = threads
        self._prediction = WaitPrediction(core)
        self._form: dict[str, Any] | None = None  # form_facts of the chat template

    def check_queue(self, params: SamplingParams) -> None:
        """Raise QueueFullError unless a request may be queued. Background requests always may."""
        if not params.is_background:
            waiting, threads = self._core.scheduler.waiting, self._threads
            num_waiting = num_interactive(waiting)

            def num_own(owner: str) -> int:
                return sum(request.tenant == owner for request in waiting[:num_waiting]) + threads.requests[owner]

            self._limits.check(
                self._prediction, num_waiting=num_waiting + threads.num_requests, num_new=params.n, num_own=num_own
            )

    def max_tokens(self, num_prompt_tokens: int, params: SamplingParams) -> int:
        """Return the most tokens that an output can have. Raises InvalidRequestError."""
        return self._input_processor.max_num_tokens(num_prompt_tokens, params) - num_prompt_tokens

    async def tokenize(self, prompt: Prompt, params: SamplingParams, *, is_new: bool) -> TokenizedPrompt:
        """Tokenize a prompt, whose length counts against the queue if it is new. Raises InvalidRequestError, too."""
        threads = self._threads
        with threads.hold(num_requests=params.n, length=length_of(prompt)) if is_new else contextlib.nullcontext():
            return await self._input_processor.tokenize(prompt, params, threads=threads)

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text. Raises InvalidRequestError, too."""
        assert self._tokenizer is not None
        self._input_processor.check_chars(text, param="prompt")
        work = partial(self._tokenizer.encode, text, add_special_tokens=add_special_tokens)
        return await self.run(work, length=len(text))

    async def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids, special tokens included."""
        assert self._tokenizer is not None
        work = partial(self._tokenizer.decode, token_ids, skip_special_tokens=False)
        return await self.run(work, length=len(token_ids))

    def prepare(self) -> None:
        """Start the process of the chat template, for which the first conversation would wait: 0.6 s."""
        if self._tokenizer is not None and self._tokenizer.has_chat_template:
            with contextlib.suppress(UnavailableError):  # the first conversation is told of it
                self._chat.start()

    async def render_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """Return the prompt text of a conversation, within limits in time and memory. Options as ChatTemplate.render.

        Raises InvalidRequestError, too.
        """
        assert self._tokenizer is not None
        return await self._in_renderer(json.dumps({"messages": self._tokenizer.escaped(messages), **options}))

    async def chat_form(self) -> dict[str, Any]:
        """Return what the chat template says of its answers, like form_facts. Raises UnavailableError."""
        if self._form is None:
            try:
                return self._learn(await self._in_renderer(_ASK))
            except InvalidRequestError as exc:  # the trials take too much time or memory
                return self._learn(json.dumps({"error": str(exc)}))
        return self._form

    def _learn(self, asked: str) -> dict[str, Any]:
        form: dict[str, Any] = json.loads(asked)
        self._form = form
        if (note := form_note(form)) is not None:
            _log.info("tools: %s", note)
        return form

    async def _in_renderer(self, conversation: str) -> str:
        with importing_for("messages"):
            work: Callable[[], str] = partial(self._chat.render, conversation)
        return await self.run(work, length=len(conversation))

    @cached_property
    def _chat(self) -> Any:
        """Renderer of the conversations."""
        from ..language.chat.renderer import Renderer

        assert self._tokenizer is not None
        return Renderer(self._tokenizer.chat_template)

    async def run(self, work: Callable[[], _T], *, length: int) -> _T:
        """Read prompts of this length together in a thread, by `work`. Raises its errors, too."""
        threads = self._threads
        self._limits.check_size(
            self._prediction, num_waiting=threads.num_requests, num_new=1, num_own=threads.requests.__getitem__
        )
        with self._threads.hold(num_requests=1, length=length):
            return await self._threads.run(work, length=length)


def form_note(form: Mapping[str, Any]) -> str | None:
    """Return what users should know of calls of tools with a chat template (form_facts), None if there is nothing."""
    if "error" in form:
        return f"{form['error']}; requests with tools need --tool-call-parser NAME"
    hidden = form.get("hidden")
    return f"the chat template prints no {' and no '.join(hidden)}: they become text" if hidden else None
