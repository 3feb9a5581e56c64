"""LimitedThinking: the constraint that closes an output's reasoning when its tokens are used up.

    before -opening-> thinking -closing, the model's own or a forced one-> after

The state follows from the tokens and the limit alone, so an output that is preempted, resumed, verified or drafted has
equal tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from .limit import ThinkingLimit


class _Place(NamedTuple):
    """Place after a token. `start`: number of tokens before the phase."""

    phase: Literal["before", "thinking", "after"]
    start: int = 0
    num_earlier: int = 0  # tokens of reasoning before the phase
    forced: tuple[int, ...] = ()  # rest of a closing that has begun


class LimitedThinking:
    """TokenConstraint of one output, around its grammar if it has one."""

    def __init__(self, limit: ThinkingLimit, inner: Any) -> None:
        self.limit = limit
        self.inner = inner
        self._tokens: list[int] = []
        self._places = [_Place("thinking" if limit.begins_open else "before")]
        self._num_confirmed = 0  # tokens that the request has; the others are tried

    @property
    def is_over(self) -> bool:
        """True if the output will not think any more."""
        place = self._places[-1]
        return place.phase == "after" or bool(place.forced) or (place.phase == "before" and place.start > 0)

    @property
    def num_thoughts(self) -> int:
        """Number of tokens of reasoning so far."""
        place = self._places[-1]
        return place.num_earlier + (len(self._tokens) - place.start if place.phase == "thinking" else 0)

    @property
    def error(self) -> str | None:
        """Like the grammar's."""
        return None if self.inner is None else self.inner.error

    @property
    def is_accepting(self) -> bool:
        """Like the grammar's."""
        return self.inner is not None and self.inner.is_accepting

    @property
    def finish_reason(self) -> str | None:
        """Like the grammar's."""
        return None if self.inner is None else self.inner.finish_reason

    @property
    def forced_from(self) -> int | None:
        """Like the grammar's: a closing follows from the tokens."""
        return None if self.inner is None else self.inner.forced_from

    @property
    def forced_token_id(self) -> int | None:
        """Next token of a completion or of a closing."""
        if self.forced_from is not None:
            token_id: int | None = self.inner.forced_token_id
            return token_id
        closing = self._closing()
        return closing[0] if closing else None

    @property
    def mask_source(self) -> Any:
        """The grammar."""
        return self.inner

    @property
    def vocab_size(self) -> int:
        """Width of a mask in tokens."""
        return self.limit.vocab_size

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Like the grammar's."""
        return frozenset() if self.inner is None else self.inner.eos_token_ids

    def new_mask_maker(self) -> Any:
        """Create the grammar's."""
        return self.inner.new_mask_maker()

    def follow(self, token_ids: Sequence[int], *, num_prompt_tokens: int) -> None:
        """Catch up with the request's tokens, or roll back to them."""
        if self.inner is not None:
            self.inner.follow(token_ids, num_prompt_tokens=num_prompt_tokens)
        output = token_ids[num_prompt_tokens + self._num_confirmed :]
        tried = self._tokens[self._num_confirmed :]
        num_same = next((i for i, (a, b) in enumerate(zip(output, tried, strict=False)) if a != b), None)
        num_kept = self._num_confirmed + (min(len(output), len(tried)) if num_same is None else num_same)
        del self._tokens[num_kept:], self._places[num_kept + 1 :]
        for token_id in output[num_kept - self._num_confirmed :]:
            self._advance(token_id)
        self._num_confirmed += len(output)

    def take(self, token_id: int) -> int:
        """Advance by the sampled token, or by the one that closes reasoning or completes the output. Return it."""
        if self.forced_from is None:
            closing = self._closing()
            token_id = closing[0] if closing else self._instead_of(token_id)
        if self.inner is not None:
            token_id = self.inner.take(token_id)
        self._advance(token_id)
        return token_id

    def _is_spent(self) -> bool:
        return self.num_thoughts >= self.limit.num_tokens

    def _due(self) -> tuple[int, ...]:
        """Return the tokens of the closing that is due here, whether or not a grammar allows them."""
        place = self._places[-1]
        if place.forced or place.phase != "thinking" or not self._is_spent():
            return place.forced
        return self.limit.closing_after(self._tokens[place.start :])

    def _closing(self) -> tuple[int, ...]:
        due = self._due()
        return due if due and self._allows(due) else ()

    def _allows(self, token_ids: Sequence[int]) -> bool:
        return self.inner is None or (self.inner.error is None and self.inner.allows(token_ids))

    def _instead_of(self, token_id: int) -> int:
        """Return the token, or one that begins content where it would begin reasoning without tokens left."""
        reasoning, content = self._content()
        return content[0] if token_id == reasoning and self._allows(content) else token_id

    def _content(self) -> tuple[int | None, tuple[int, ...]]:
        """Return the token that would begin reasoning without tokens left, and the tokens of content in its place."""
        is_due = self._places[-1].phase == "before" and self._is_spent()
        return self.limit.content_after(self._tokens) if is_due else (None, ())

    def _advance(self, token_id: int) -> None:
        due = self._due() or self._content()[1]
        self._tokens.append(token_id)
        self._places.append(self._next(token_id, due))

    def _next(self, token_id: int, due: tuple[int, ...]) -> _Place:
        """Return the place after the last token, where `due` was due."""
        place, limit, num_tokens = self._places[-1], self.limit, len(self._tokens)
        is_forced = due[:1] == (token_id,)
        if is_forced and len(due) > 1:
            return place._replace(forced=due[1:])
        if place.phase == "thinking":
            num_thoughts = place.num_earlier + num_tokens - place.start
            if is_forced or limit.finds(limit.form.closings, self._tokens[place.start :]):
                return _Place("before" if limit.is_repeated else "after", num_tokens, num_thoughts)
        elif place.phase == "before":
            opens = limit.opens(self._tokens[place.start :])
            if opens is not None:
                return _Place("thinking" if opens else "after", num_tokens, place.num_earlier)
        return place._replace(forced=()) if place.forced else place


@dataclass(frozen=True, slots=True)
class LimitedGrammar:
    """Limit around a compiled grammar, or around none, in place of the grammar."""

    limit: ThinkingLimit
    grammar: Any

    def begin(self, *, max_tokens: int | None = None, forced_from: int | None = None) -> LimitedThinking:
        """Return the state of one output, like CompiledGrammar."""
        inner = self.grammar
        if inner is not None:
            inner = inner.begin(max_tokens=max_tokens, forced_from=forced_from)
        return LimitedThinking(self.limit, inner)
