"""GrammarCompiler: compile a constraint to a CompiledGrammar, off the event loop, once, within a time limit.

Compiled grammars are cached, bounded in number and bytes; requests for a grammar that is being compiled share its
future.
"""

import contextlib
import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

from ...errors import InvalidRequestError, QueueFullError
from ...execution.models.config import ModelConfig
from ...text.tokenizer import Tokenizer
from .forced_completion import CompletionFinder
from .grammar import CompiledGrammar
from .params import StructuredOutputs
from .refusal import refusal
from .sandbox import Sandbox, SandboxError
from .sandbox_worker import limits
from .to_llguidance import grammar_source

MAX_GRAMMARS = 256
MAX_BYTES = 256 * 2**20
# A grammar being compiled has a thread, which mostly waits for the sandbox: the sandbox decides the order of trials.
MAX_COMPILING = 128
_RETRY_S = 2.0
_NUM_SLOW = 2  # grammars that were slow in the sandbox and are compiled at once


class _Setup(NamedTuple):
    """Setup for compiling all grammars."""

    tokenizer: Any  # llguidance's tokenizer
    finder: CompletionFinder
    sandbox: Sandbox


class GrammarCompiler:
    """Compiler of grammars for one model's tokenizer, end tokens and width of the logits."""

    def __init__(self, tokenizer: Tokenizer, model_config: ModelConfig) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = max(model_config.vocab_size, tokenizer.vocab_size)
        self._end = sorted(i for i in model_config.eos_token_ids if 0 <= i < model_config.vocab_size)
        self._why_not = "" if self._end else "config.json names no end token (eos_token_id), so no output could end"
        try:
            import llguidance  # noqa: F401  # imported early: later no file descriptor may be free
        except ImportError:
            self._why_not = "llguidance is not installed here; `pip install llguidance`"
        self._threads = ThreadPoolExecutor(max_workers=MAX_COMPILING, thread_name_prefix="splitfuse-grammar")
        self._slow = threading.Semaphore(_NUM_SLOW)
        self._lock = threading.Lock()
        self._setup: Future[_Setup] | None = None
        self._cache: OrderedDict[StructuredOutputs, Future[CompiledGrammar]] = OrderedDict()  # last used last
        self._num_bytes = self._num_compiling = 0
        self._num_queries = self._num_hits = self._num_refused = 0

    def stats(self) -> dict[str, int]:
        """Return the counts of requested, cached (or being compiled) and refused grammars, and the cache's size."""
        return {
            "grammar_cache_queries": self._num_queries,
            "grammar_cache_hits": self._num_hits,
            "grammar_refusals": self._num_refused,
            "num_grammars": len(self._cache),
            "grammar_cache_bytes": self._num_bytes,
        }

    def prepare(self) -> "Future[_Setup]":
        """Begin the setup for grammars, if that has not begun; best while the server is idle.

        The setup takes 33 MiB and holds the GIL: 15 ms for 4,096 entries, 0.25 s for 49,152, 0.6 s for 128,000.
        """
        with self._lock:
            if self._setup is None:
                self._setup = self._threads.submit(self._set_up)
            return self._setup

    def compile(self, outputs: StructuredOutputs) -> "Future[CompiledGrammar]":
        """Return a future of the grammar. Requests share the future: do not cancel it.

        The future raises InvalidRequestError, QueueFullError, UnavailableError. This method raises QueueFullError if
        too many grammars are being compiled.
        """
        setup = self.prepare()  # first, because compilations that wait for the setup may take every thread
        with self._lock:
            self._num_queries += 1
            cached = self._cache.get(outputs)
            if cached is not None:
                self._num_hits += 1
                self._cache.move_to_end(outputs)
                return cached
            if self._num_compiling >= MAX_COMPILING:
                message = f"{MAX_COMPILING} grammars are being compiled; try again in {_RETRY_S:.0f} s"
                raise QueueFullError(message, retry_after_s=_RETRY_S)
            future = self._cache[outputs] = self._threads.submit(self._compile, outputs, setup)
            self._num_compiling += 1
        future.add_done_callback(partial(self._finish, outputs))
        return future

    def _set_up(self) -> _Setup:
        why_not = self._why_not
        try:
            if not why_not:
                from llguidance import LLTokenizer

                text = self._tokenizer.to_json()
                tokenizer = LLTokenizer(text, n_vocab=self._vocab_size, eos_token=self._end)
                sandbox = Sandbox(tokenizer_json=text, vocab_size=self._vocab_size, eos_token_ids=self._end)
                return _Setup(tokenizer, CompletionFinder(tokenizer), sandbox)
        except Exception as exc:  # llguidance does not support every tokenizer; other requests can be served
            why_not = str(exc)
        raise InvalidRequestError(
            f"structured_outputs cannot be used with this model: {why_not}", param="structured_outputs"
        )

    def _compile(self, outputs: StructuredOutputs, making: "Future[_Setup]") -> CompiledGrammar:
        setup = making.result()
        from llguidance import LLMatcher

        source = grammar_source(outputs)
        try:
            trial = setup.sandbox.run(source)
        except SandboxError as exc:
            raise refusal(outputs, str(exc)) from exc
        with self._slow if trial.is_slow else contextlib.nullcontext():
            matcher = LLMatcher(setup.tokenizer, source, log_level=0, limits=limits())
        if matcher.is_error():
            raise refusal(outputs, matcher.get_error())
        return CompiledGrammar(
            matcher,
            finder=setup.finder,
            vocab_size=setup.tokenizer.vocab_size,
            eos_token_ids=frozenset(setup.tokenizer.eos_tokens),
            num_bytes=trial.num_bytes + len(source),
        )

    def _finish(self, outputs: StructuredOutputs, future: "Future[CompiledGrammar]") -> None:
        """Drop a failed grammar. Otherwise count it, and evict least recently used grammars beyond the bounds."""
        with self._lock:
            self._num_compiling -= 1
            if future.exception() is not None:
                self._num_refused += 1
                del self._cache[outputs]
                return
            self._num_bytes += future.result().num_bytes
            finished = [key for key, other in self._cache.items() if other.done() and other.exception() is None]
            while finished and (len(self._cache) > MAX_GRAMMARS or self._num_bytes > MAX_BYTES):
                self._num_bytes -= self._cache.pop(finished.pop(0)).result().num_bytes
