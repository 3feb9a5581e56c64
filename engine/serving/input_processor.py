"""InputProcessor: makes requests of a prompt and its parameters, or refuses them clearly."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, NotRequired, TypedDict

from ..checks import check_text, check_token_ids
from ..core.outputs import KnownOutput
from ..core.request import Request
from ..core.sampling_params import SamplingParams
from ..errors import ContextLengthError, InvalidRequestError, UnavailableError
from ..execution.models.config import ModelConfig
from ..execution.sampling.rng import derive_seed
from ..language.structured_output.compiler import GrammarCompiler
from ..language.text.tokenizer import Tokenizer
from ..language.workers.input_threads import InputThreads
from .submitted_request import Resumed

if TYPE_CHECKING:
    from ..language.structured_output.grammar import CompiledGrammar

# Text, ids, or {"prompt": text} / {"prompt_token_ids": ids} like vLLM's. "add_special_tokens": False says that the text
# has special tokens already.
Prompt = str | Sequence[int] | Mapping[str, Any]


class TextPrompt(TypedDict):
    """Prompt as text, by vLLM's name."""

    prompt: str
    add_special_tokens: NotRequired[bool]


class TokensPrompt(TypedDict):
    """Prompt as token ids, by vLLM's name."""

    prompt_token_ids: Sequence[int]


# A token of one character takes 190 bytes while a text is tokenized, so 2 MB of them took 400 MB.
_MAX_CHARS = 512 * 1024
_CHARS_PER_TOKEN = 16  # a model with a longer context takes more
_FEW_IDS = 1024  # checked at once in 20 us; the way to a thread and back takes 100


@contextmanager
def _ignore_if_optional(params: SamplingParams) -> Iterator[None]:
    """Leave out a grammar that cannot be used, if it is optional."""
    try:
        yield
    except InvalidRequestError:
        if params.structured_outputs is None or not params.structured_outputs.is_optional:
            raise


@dataclass(frozen=True, slots=True)
class TokenizedPrompt:
    """Prompt and bad words as token ids. `grammar`: its compiled one, or what a part has put around it."""

    token_ids: list[int]
    params: SamplingParams
    bad_words: tuple[tuple[int, ...], ...] = ()
    grammar: "CompiledGrammar | Any" = None


class LengthLimit(NamedTuple):
    """Largest number of tokens of prompt and output together. `reason`: name of the limit."""

    num_tokens: int
    reason: str


class InputProcessor:
    """Checks that need the model: vocabulary, context length, the size of the KV cache."""

    def __init__(
        self,
        *,
        tokenizer: Tokenizer | None,
        grammars: GrammarCompiler | None,
        model_config: ModelConfig,
        max_model_len: int,
        max_cache_tokens: int,
        seed: int,
        generates: bool = True,
        request_class: type[Request] = Request,
    ) -> None:
        """`generates`: False for a model whose prompts are only pooled."""
        self._request_class = request_class
        self._tokenizer = tokenizer
        self._generates = generates
        self._grammars = grammars
        self._vocab_size = model_config.vocab_size
        # A checkpoint may name an end token that its logits do not have.
        self.eos_token_ids = frozenset(i for i in model_config.eos_token_ids if 0 <= i < model_config.vocab_size)
        remedy = "--max-model-len" if max_model_len < model_config.max_len_limit else "--rope-scaling"
        capacities = (
            LengthLimit(max_model_len, f"the model's context (see {remedy})"),
            LengthLimit(max_cache_tokens, "the KV cache (see --kv-cache-memory-bytes)"),
        )
        self._capacity = min(capacities, key=itemgetter(0))  # the first of two equal ones
        self._seed = seed
        self._num_seeds = 0

    def stats(self) -> dict[str, int]:
        """Return counts of grammars for /stats; empty without a compiler."""
        return {} if self._grammars is None else self._grammars.stats()

    async def prepare(self) -> None:
        """Build the tables that grammars need, which holds the GIL for some 0.25 s. A failure shows in a request."""
        with suppress(InvalidRequestError, UnavailableError, RuntimeError):  # RuntimeError: no thread can be started
            if self._grammars is not None:
                await asyncio.shield(asyncio.wrap_future(self._grammars.prepare()))

    async def tokenize(self, prompt: Prompt, params: SamplingParams, *, threads: InputThreads) -> TokenizedPrompt:
        """Tokenize a prompt in `threads`, and compile its grammar. Raises InvalidRequestError.

        A prompt that is too long by its length alone is refused before.
        """
        self._check_length(prompt, params)
        compiling = self._compile(params)
        if (
            isinstance(_content(prompt), list)
            and length_of(prompt) < _FEW_IDS
            and not (params.stop or params.bad_words)
        ):
            tokenized = self._tokenize(prompt, params)
        else:
            tokenized = await threads.run(partial(self._tokenize, prompt, params), length=length_of(prompt))
        if compiling is None:
            return tokenized
        with _ignore_if_optional(params):
            # Other requests may wait for the same grammar: cancelling one of them must not cancel it.
            grammar = await asyncio.shield(asyncio.wrap_future(compiling))
            return replace(tokenized, grammar=grammar)
        return tokenized

    def requests(
        self,
        request_id: str,
        tokenized: TokenizedPrompt,
        *,
        now: float,
        tenant: str = "",
        resumed: Resumed | None = None,
    ) -> list[Request]:
        """Make the n requests of one prompt, without outputs that a resumed one has ended.

        Raises InvalidRequestError (ContextLengthError).
        """
        params, grammar = tokenized.params, tokenized.grammar
        if params.pooling is None and not self._generates:
            raise InvalidRequestError("this model generates no text; POST /v1/embeddings, /score or /classify")
        outputs = params.structured_outputs
        assert grammar is not None or outputs is None or outputs.is_optional
        token_ids = tokenized.token_ids
        params.check_against(vocab_size=self._vocab_size)
        if (num_kept := params.truncate_prompt_tokens) is not None:
            token_ids = token_ids[-num_kept:] if params.truncation_side == "left" else token_ids[:num_kept]
        limit = self.max_num_tokens(len(token_ids), params)
        stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self.eos_token_ids)
        _check_some_token_is_left(params, stop_ids, tokenized.bad_words)
        if resumed is None:
            seed = self._next_seed() if params.seed is None else params.seed
            resumed = Resumed(seed, (KnownOutput(),) * params.n, now)
        # A forced completion would not respect allowed_token_ids and bad words.
        can_force = params.allowed_token_ids is None and not tokenized.bad_words
        max_tokens = limit - len(token_ids) if can_force else None
        requests: list[Request] = []
        for index, known in enumerate(resumed.outputs):
            if known.has_ended:
                continue
            if len(token_ids) + len(known.token_ids) >= limit:
                reason = f"the answer has {len(known.token_ids)} tokens already; send a larger max_tokens"
                raise InvalidRequestError(reason, param="max_tokens")
            state = None if grammar is None else grammar.begin(max_tokens=max_tokens, forced_from=known.forced_from)
            requests.append(
                self._request_class(
                    request_id=request_id,
                    index=index,
                    prompt_token_ids=token_ids,
                    params=params,
                    max_num_tokens=limit,
                    seed=resumed.seed if index == 0 else derive_seed(resumed.seed, index),
                    stop_token_ids=stop_ids,
                    bad_words=tokenized.bad_words,
                    grammar=state,
                    tenant=tenant,
                    parent=requests[0] if requests else None,
                    arrival_time=resumed.arrival_time,
                    known=known,
                )
            )
        return requests

    def _compile(self, params: SamplingParams) -> "Future[CompiledGrammar] | None":
        if params.structured_outputs is None:
            return None
        with _ignore_if_optional(params):
            if self._grammars is None:
                reason = "structured_outputs needs a tokenizer, and this model's folder has no tokenizer.json"
                raise InvalidRequestError(reason, param="structured_outputs")
            return self._grammars.compile(params.structured_outputs)
        return None

    def _tokenize(self, prompt: Prompt, params: SamplingParams) -> TokenizedPrompt:
        if self._tokenizer is None and (params.stop or params.bad_words):
            param = "stop" if params.stop else "bad_words"
            raise InvalidRequestError(f"{param} needs a tokenizer, and this model has none", param=param)
        token_ids = self._token_ids(prompt, params)
        return TokenizedPrompt(token_ids, params, self._bad_words(params.bad_words))

    def _check_length(self, prompt: Prompt, params: SamplingParams) -> None:
        """Raise if the prompt's characters alone are too many tokens."""
        text = _content(prompt)
        if not isinstance(text, str) or self._tokenizer is None:
            return
        num_kept, largest = params.truncate_prompt_tokens, self._capacity.num_tokens
        if num_kept is not None and num_kept < largest:
            return
        if (num_tokens := self._tokenizer.length_bound.min_tokens(text)) >= largest:
            raise self._too_long(f"at least {num_tokens}", params)

    def check_chars(self, text: str, *, param: str) -> None:
        """Like the function."""
        check_chars(text, num_tokens=self._capacity.num_tokens, param=param)

    def _token_ids(self, prompt: Prompt, params: SamplingParams) -> list[int]:
        name, has_special_tokens = params.name_of("prompt"), False
        if isinstance(prompt, Mapping):
            has_special_tokens = prompt.get("add_special_tokens") is False and "prompt" in prompt
            if len(prompt) != 1 + has_special_tokens or not prompt.keys() & {"prompt", "prompt_token_ids"}:
                raise InvalidRequestError('a prompt object has one key: "prompt" or "prompt_token_ids"', param=name)
            prompt = _content(prompt)
        if isinstance(prompt, str):
            token_ids = self._encode(prompt, params, add_special_tokens=not has_special_tokens)
        elif isinstance(prompt, (list, tuple)) and all(type(item) is int for item in prompt):
            token_ids = list(prompt)
            check_token_ids(token_ids, vocab_size=self._vocab_size, param=name)
        else:
            raise InvalidRequestError(f"{name} must be a string or a list of token ids", param=name)
        if not token_ids:
            raise InvalidRequestError(f"{name} is empty; send at least one token", param=name)
        return token_ids

    def _encode(self, text: str, params: SamplingParams, *, add_special_tokens: bool) -> list[int]:
        name, num_kept = params.name_of("prompt"), params.truncate_prompt_tokens
        check_text(text, param=name)
        if self._tokenizer is None:
            raise InvalidRequestError("this model has no tokenizer; send token ids", param=name)
        if num_kept is not None and params.truncation_side == "left":
            text = self._tokenizer.length_bound.tail(text, num_tokens=num_kept)
        self.check_chars(text, param=name)
        token_ids = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        # A tokenizer wider than the logits can make ids beyond the embedding.
        check_token_ids(token_ids, vocab_size=self._vocab_size, param=name)
        return token_ids

    def max_num_tokens(self, num_prompt_tokens: int, params: SamplingParams) -> int:
        """Return the most tokens of prompt and output: the requested number if it fits, or a default cut to fit."""
        largest, holder = self._capacity
        # One token behind a prompt that is pooled or scored is never computed.
        largest += params.pooling is not None or (params.prompt_logprobs is not None and params.max_tokens == 1)
        if num_prompt_tokens >= largest:
            raise self._too_long(str(num_prompt_tokens), params)
        if params.max_length is not None and params.max_length <= num_prompt_tokens:
            raise InvalidRequestError(
                f"max_length {params.max_length} leaves no room for output after a prompt of "
                f"{num_prompt_tokens} tokens; it counts both",
                param="max_length",
            )
        default = min(largest, num_prompt_tokens + (params.default_max_tokens or largest))
        requested = _requested_limits(num_prompt_tokens, params)
        limit, param = min(requested, key=itemgetter(0), default=LengthLimit(default, ""))
        if limit > largest:
            raise ContextLengthError(
                f"This model's maximum context length is {largest} tokens: "
                f"{num_prompt_tokens} prompt tokens and up to {limit - num_prompt_tokens} new ones are more than the "
                f"{largest} that {holder} holds; set {params.name_of('max_tokens')} to {largest - num_prompt_tokens} "
                "or less",
                param=param,
            )
        if params.min_tokens > limit - num_prompt_tokens:
            reason = f"min_tokens {params.min_tokens} is more than the {limit - num_prompt_tokens} tokens that can come"
            raise InvalidRequestError(reason, param="min_tokens")
        return limit

    def _too_long(self, num_tokens: str, params: SamplingParams) -> ContextLengthError:
        # The first words are OpenAI's and vLLM's, by which clients know the error: litellm falls back to another model.
        largest, holder = self._capacity
        return ContextLengthError(
            f"This model's maximum context length is {largest} tokens: the prompt has {num_tokens} tokens and {holder} "
            f"holds {largest} with at least one new token; "
            f"shorten the prompt or set truncate_prompt_tokens to {largest - 1} or less",
            param=params.name_of("prompt"),
        )

    def _bad_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Return the ids of each word, as given and after a space: both spellings occur in running text.

        Ids beyond the logits, of a wider tokenizer, cannot be sampled and need not be forbidden.
        """
        spellings = [spelling for word in words for spelling in (word, " " + word.lstrip())]
        encoded = [tuple(self._tokenizer.encode(s, add_special_tokens=False)) for s in spellings if self._tokenizer]
        return tuple(dict.fromkeys(ids for ids in encoded if ids and max(ids) < self._vocab_size))

    def _next_seed(self) -> int:
        self._num_seeds += 1
        return derive_seed(self._seed, self._num_seeds)


def length_of(prompt: Prompt) -> int:
    """Return the number of characters or ids; 0 for a value that is no prompt."""
    content = _content(prompt)
    return len(content) if isinstance(content, (str, list, tuple)) else 0


def check_chars(text: str, *, num_tokens: int, param: str) -> None:
    """Raise if a text is too long to be tokenized for so many tokens, whether or not all of it is kept."""
    most = max(_MAX_CHARS, _CHARS_PER_TOKEN * num_tokens)
    if len(text) > most:
        reason = f"{param} has {len(text)} characters, and at most {most} are tokenized at once; send less"
        raise ContextLengthError(reason, param=param)


def text_of(prompt: Prompt) -> str | None:
    """Return the text of a prompt; None if it came as ids."""
    content = _content(prompt)
    return content if isinstance(content, str) else None


def _content(prompt: Prompt) -> Any:
    return prompt.get("prompt", prompt.get("prompt_token_ids")) if isinstance(prompt, Mapping) else prompt


def _check_some_token_is_left(
    params: SamplingParams, stop_ids: frozenset[int], bad_words: Sequence[tuple[int, ...]]
) -> None:
    """Raise if all allowed tokens are forbidden too, from the first token on."""
    forbidden = {word[0] for word in bad_words if len(word) == 1}.union(stop_ids if params.min_tokens else ())
    if params.allowed_token_ids is not None and forbidden.issuperset(params.allowed_token_ids):
        raise InvalidRequestError(
            "allowed_token_ids holds nothing but what bad_words forbid, or end tokens that min_tokens forbids; "
            "allow another token",
            param="allowed_token_ids",
        )


def _requested_limits(num_prompt_tokens: int, params: SamplingParams) -> Iterator[LengthLimit]:
    """Yield the limits that the request sets; their reasons are its fields."""
    if params.max_length is not None:
        yield LengthLimit(params.max_length, "max_length")
    if params.max_tokens is not None:
        yield LengthLimit(num_prompt_tokens + params.max_tokens, params.name_of("max_tokens"))
