"""Confidence: how often tokens of a kind were right, so that a draft ends where tokens are no longer worth their cost.

A text is certain for ten tokens and then open, which a request's mean acceptance does not show. Candidates are compared
with the tokens that came, drafted or not, so kinds that are not drafted at present are judged, too. All tenants share
the counts, which hold no text.
"""

from collections.abc import Iterable
from itertools import zip_longest

from ...core.request import Request

_DECAY = 0.98  # weight that older tokens of a kind keep with each new one
_FIRST_GUESS, _PRIOR_WEIGHT = 0.6, 1.5  # share of right tokens of a kind before any was seen; its weight, in tokens
_NONE = -1, 0, 0.0

Candidate = tuple[int, int, float]  # token id, tokens that matched before it, frequency among what followed in the past
Kind = tuple[int, int, int, int]


class _Draft:
    """Draft of one source, as far as it was looked at."""

    def __init__(self) -> None:
        self.tokens = list[tuple[int, Kind]]()
        self.probability, self.gain, self.length = 1.0, 0.0, 0


class Confidence:
    """Probabilities of candidates by their kind, for one drafter."""

    def __init__(self) -> None:
        self.least = 0.0  # probability from which on a token is worth its cost; Speculation writes it
        self._seen: dict[Kind, tuple[float, float]] = {}  # right and all tokens, older ones counting less
        self._last: dict[Request, tuple[int, list[_Draft]]] = {}  # number of tokens then, drafts

    def best(self, request: Request, sources: tuple[Iterable[Candidate], Iterable[Candidate]]) -> list[int]:
        """Return the beginning of a source's draft that has most to gain, the first one's if equal."""
        self._learn(request)
        drafts = [_Draft(), _Draft()]
        agreement = 2  # 1 where the sources part: tokens are right less often there, and more often before
        for pair in zip_longest(*sources, fillvalue=_NONE):
            if agreement < 2 or pair[0][0] != pair[1][0]:
                agreement = int(agreement == 2 and _NONE not in pair)
            for number, (draft, (token_id, num_matched, frequency)) in enumerate(zip(drafts, pair, strict=True)):
                if draft.probability < self.least or token_id < 0:
                    continue
                kind = number, min(num_matched, 64).bit_length(), int(4 * frequency), agreement
                draft.tokens.append((token_id, kind))
                draft.probability *= self._probability(kind)
                if draft.probability >= self.least:
                    draft.gain += draft.probability - self.least
                    draft.length += 1
            if max(draft.probability for draft in drafts) < self.least:
                break
        self._last[request] = request.num_tokens, drafts
        best = max(drafts, key=lambda draft: draft.gain)
        return [token_id for token_id, _ in best.tokens[: best.length]]

    def _learn(self, request: Request) -> None:
        """Compare the last drafts with the text, each up to its first wrong token."""
        num_tokens, drafts = self._last.pop(request, (0, ()))
        text = request.token_ids[num_tokens:]
        for draft in drafts:
            for (token_id, kind), actual in zip(draft.tokens, text, strict=False):
                right, tried = self._seen.get(kind, (0.0, 0.0))
                self._seen[kind] = _DECAY * right + (token_id == actual), _DECAY * tried + 1
                if token_id != actual:
                    break

    def forget(self, request: Request) -> None:
        """Learn from a request that has ended, and drop it."""
        self._learn(request)

    def _probability(self, kind: Kind) -> float:
        right, tried = self._seen.get(kind, (0.0, 0.0))
        return (right + _FIRST_GUESS * _PRIOR_WEIGHT) / (tried + _PRIOR_WEIGHT)
