"""GrammarCompiler: compile a constraint to a CompiledGrammar, off the event loop, once, within a time limit.

Compiled grammars are cached, bounded in number and bytes; requests for a grammar that is being compiled share its
future.
"""

import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from ...errors import InvalidRequestError, QueueFullError, UnavailableError
from ...execution.models.config import ModelConfig
from ...extension import importing_for
from ..text.tokenizer import Tokenizer
from ..workers.shares import Shares, sharer
from .params import StructuredOutputs

if TYPE_CHECKING:
    from .grammar import CompiledGrammar
    from .grammar_maker import GrammarMaker

MAX_GRAMMARS = 256
MAX_BYTES = 256 * 2**20
# A grammar being compiled has a thread, which mostly waits for the sandbox: the sandbox decides the order of trials.
MAX_COMPILING = 128
_RETRY_S = 2.0


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
        self._lock = threading.Lock()
        self._maker: Future[GrammarMaker] | None = None
        self._cache: OrderedDict[StructuredOutputs, Future[CompiledGrammar]] = OrderedDict()  # last used last
        self._compiling = Shares(MAX_COMPILING)
        self._num_bytes = 0
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

    def prepare(self) -> "Future[GrammarMaker]":
        """Begin to set up the maker of grammars, if that has not begun; best while the server is idle.

        The setup takes 33 MiB and holds the GIL: 15 ms for 4,096 entries, 0.25 s for 49,152, 0.6 s for 128,000.
        """
        with self._lock:
            if self._maker is None or _may_be_retried(self._maker):
                self._maker = self._threads.submit(self._set_up)
            return self._maker

    def compile(self, outputs: StructuredOutputs) -> "Future[CompiledGrammar]":
        """Return a future of the grammar. Requests share the future: do not cancel it.

        The future raises InvalidRequestError, QueueFullError, UnavailableError. This method raises QueueFullError if
        too many grammars of the key are being compiled.
        """
        owner = sharer()
        maker = self.prepare()  # first, because compilations that wait for the setup may take every thread
        with self._lock:
            self._num_queries += 1
            cached = self._cache.get(outputs)
            if cached is not None:
                self._num_hits += 1
                self._cache.move_to_end(outputs)
                return cached
            if self._compiling.room(owner) <= 0:
                whose = " of this key" if owner else ""
                num = self._compiling.held[owner]
                message = f"{num} grammars{whose} are being compiled; try again in {_RETRY_S:.0f} s"
                raise QueueFullError(message, retry_after_s=_RETRY_S)
            future = self._cache[outputs] = self._threads.submit(lambda: maker.result().make(outputs, owner=owner))
            self._compiling.held[owner] += 1
        future.add_done_callback(partial(self._finish, outputs, owner))
        return future

    def _set_up(self) -> "GrammarMaker":
        why_not = self._why_not
        try:
            if not why_not:
                with importing_for("structured_outputs"):
                    from .grammar_maker import GrammarMaker  # here: llguidance takes 40 ms
                return GrammarMaker(self._tokenizer.to_json(), vocab_size=self._vocab_size, eos_token_ids=self._end)
        except UnavailableError:
            raise
        except Exception as exc:  # llguidance does not support every tokenizer; other requests can be served
            why_not = str(exc)
        reason = f"structured_outputs cannot be used with this model: {why_not}"
        raise InvalidRequestError(reason, param="structured_outputs")

    def _finish(self, outputs: StructuredOutputs, owner: str, future: "Future[CompiledGrammar]") -> None:
        """Drop a failed grammar. Otherwise count it, and evict least recently used grammars beyond the bounds."""
        with self._lock:
            self._compiling.held[owner] -= 1
            if future.exception() is not None:
                self._num_refused += 1
                del self._cache[outputs]
                return
            self._num_bytes += future.result().num_bytes
            finished = [key for key, other in self._cache.items() if other.done() and other.exception() is None]
            while finished and (len(self._cache) > MAX_GRAMMARS or self._num_bytes > MAX_BYTES):
                self._num_bytes -= self._cache.pop(finished.pop(0)).result().num_bytes


def _may_be_retried(making: "Future[GrammarMaker]") -> bool:
    return making.done() and isinstance(making.exception(), UnavailableError)
