"""GrammarCompiler: from a constraint to a CompiledGrammar, off the event loop, within a time limit, once for all.

What has been compiled is kept, bounded in number and bytes; who asks for what is being compiled waits with the others.
"""

import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from ..errors import InvalidRequestError
from ..models.config import ModelConfig
from ..tokenizer.tokenizer import Tokenizer
from .forced_completion import Ways
from .grammar import CompiledGrammar
from .params import StructuredOutputs
from .sandbox import TrialError, Trials
from .sandbox_worker import limits
from .to_llguidance import grammar_source, refusal

MAX_GRAMMARS = 256
MAX_BYTES = 256 * 2**20
# Each waits for a trial, which ends after 1.2 s at the latest, so bad grammars hardly ever hold up good ones.
_NUM_THREADS = 16


class GrammarCompiler:
    """Compiles for one model's tokenizer, end tokens and width of the logits."""

    def __init__(self, tokenizer: Tokenizer, model_config: ModelConfig) -> None:
        from llguidance import LLTokenizer

        vocab_size = max(model_config.vocab_size, tokenizer.vocab_size)
        end = sorted(i for i in model_config.eos_token_ids if 0 <= i < model_config.vocab_size)
        text = tokenizer.to_json()
        self._tokenizer: LLTokenizer | None = None
        self._why_not = "config.json names no end token (eos_token_id), so no output could end"
        if end:
            try:
                # Holds the GIL: 15 ms for 4,096 entries, 0.6 s for 128,000. So it is done while the model loads.
                self._tokenizer = LLTokenizer(text, n_vocab=vocab_size, eos_token=end)
                self._ways = Ways(self._tokenizer)
            except Exception as exc:  # a kind of tokenizer that it does not know; all other requests can be served
                self._why_not = str(exc)
        self._trials = Trials(tokenizer_json=text, vocab_size=vocab_size, eos_token_ids=end)
        self._threads = ThreadPoolExecutor(max_workers=_NUM_THREADS, thread_name_prefix="splitfuse-grammar")
        self._lock = threading.Lock()
        self._cache: OrderedDict[StructuredOutputs, Future[CompiledGrammar]] = OrderedDict()  # last used last
        self._num_bytes = 0
        self._num_queries = self._num_hits = self._num_refused = 0

    def stats(self) -> dict[str, int]:
        """How often a grammar was asked for, was there (or on its way), was refused; and what is kept."""
        return {
            "grammar_cache_queries": self._num_queries,
            "grammar_cache_hits": self._num_hits,
            "grammar_refusals": self._num_refused,
            "num_grammars": len(self._cache),
            "grammar_cache_bytes": self._num_bytes,
        }

    def compile(self, outputs: StructuredOutputs) -> "Future[CompiledGrammar]":
        """The grammar, in a while; others may wait for the same future, so do not cancel it.

        It raises InvalidRequestError, and so does this if the model's tokenizer cannot be used.
        """
        if self._tokenizer is None:
            raise InvalidRequestError(
                f"structured_outputs cannot be used with this model: {self._why_not}",
                param="structured_outputs",
            )
        with self._lock:
            self._num_queries += 1
            known = self._cache.get(outputs)
            if known is not None:
                self._num_hits += 1
                self._cache.move_to_end(outputs)
                return known
            future = self._cache[outputs] = self._threads.submit(self._compile, outputs)
        future.add_done_callback(partial(self._settle, outputs))
        return future

    def _compile(self, outputs: StructuredOutputs) -> CompiledGrammar:
        from llguidance import LLMatcher

        assert self._tokenizer is not None
        source = grammar_source(outputs)
        try:
            num_bytes = self._trials.run(source)
        except TrialError as exc:
            raise refusal(outputs, str(exc)) from exc
        matcher = LLMatcher(self._tokenizer, source, log_level=0, limits=limits())
        if matcher.is_error():
            raise refusal(outputs, matcher.get_error())
        return CompiledGrammar(
            matcher,
            ways=self._ways,
            vocab_size=self._tokenizer.vocab_size,
            eos_token_ids=frozenset(self._tokenizer.eos_tokens),
            num_bytes=num_bytes + len(source),
        )

    def _settle(self, outputs: StructuredOutputs, future: "Future[CompiledGrammar]") -> None:
        """Book what has been compiled; forget what has failed and what has not been used for the longest."""
        with self._lock:
            if future.exception() is not None:
                self._num_refused += 1
                del self._cache[outputs]
                return
            self._num_bytes += future.result().num_bytes
            done = [key for key, other in self._cache.items() if other.done() and other.exception() is None]
            while done and (len(self._cache) > MAX_GRAMMARS or self._num_bytes > MAX_BYTES):
                self._num_bytes -= self._cache.pop(done.pop(0)).result().num_bytes
