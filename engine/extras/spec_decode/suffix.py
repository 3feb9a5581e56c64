"""Suffix decoding: drafts from the request's own text, and from a tree of its tenant's past prompts and answers.

Oliaro et al. 2025 (arXiv 2411.04975). No model. Where requests resemble earlier ones (turns of an agent, calls of the
same tool, answers of one form) their ends match long pieces of past text, and long drafts are right.

Two sources draft: the own text by NgramIndex, and the past by the most frequent next tokens, as many as
`max_spec_factor` times the match and as long as their joint frequency is `min_token_prob` or more. Confidence ends both
and takes the one with more to gain. Tenants, and salts of one tenant, have trees of their own: no other tenant's
text is drafted, so times reveal none of it.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from itertools import count as count_from
from itertools import islice, repeat

from ...core.request import Request
from .confidence import Candidate, Confidence
from .ngram import NgramDrafter
from .suffix_tree import SuffixTree

# Suffixes that one call adds or removes, 3 to 5 us each. They are part of the drafter's time, which is bounded.
_MAX_WORK = 64
_MIN_MATCH, _MAX_MATCH = 2, 32  # tokens of a match
# Of one request; the rest of a longer one is not kept.
_MAX_KEPT_TOKENS = 32_768
_MAX_WAITING_TOKENS = 65_536  # requests that end meanwhile are not kept
_MAX_KEPT_AT_ONCE = 1024  # suffixes added at a request's end

Owner = tuple[str, str]


class SuffixDrafter:
    """Drafter with one tree per tenant, and an index per request."""

    def __init__(
        self,
        *,
        max_tree_depth: int = 64,
        max_cached_tokens: int = 2**18,
        max_spec_factor: float = 2.0,
        min_token_prob: float = 0.5,
    ) -> None:
        """`max_tree_depth`: tokens of a match and its draft together. `max_cached_tokens`: of all tenants together;
        about 200 bytes each. `max_spec_factor`: tokens of a draft for each of its match. `min_token_prob`: the least
        frequency of a whole draft after its match.
        """
        self._max_depth = max_tree_depth
        self._max_tokens, self._factor, self._least = max_cached_tokens, max_spec_factor, min_token_prob
        self.confidence = Confidence()
        self._own = NgramDrafter(min_n=_MIN_MATCH, max_n=_MAX_MATCH)
        self._trees: OrderedDict[Owner, SuffixTree] = OrderedDict()
        self._victim: Owner | None = None  # loses its oldest tokens
        self._num_removals = 0
        self._num_waiting = 0  # suffixes to add
        self.num_tokens = 0  # suffixes in all trees

    def draft(self, wanted: Mapping[Request, int]) -> dict[Request, list[int]]:
        """Like Drafter.draft, from the match that has most to gain."""
        self._work(_MAX_WORK)
        return {request: draft for request, count in wanted.items() if (draft := self._drafted(request, count))}

    def _drafted(self, request: Request, count: int) -> list[int]:
        index = self._own.index(request)
        position, num_own = index.find() if index.extend() else (0, 0)
        own = zip(index.following(position, count) if num_own else (), count_from(num_own), repeat(1.0))
        return self.confidence.best(request, (own, self._past(request, count)))

    def _past(self, request: Request, count: int) -> Iterator[Candidate]:
        """Follow the tree, and match anew where its depth ends."""
        tree, text, joint = self._trees.get(_owner(request)), request.token_ids[-_MAX_MATCH:], 1.0
        while tree is not None and count > 0:
            match = tree.match(text[-_MAX_MATCH:], _MAX_MATCH)
            if match is None or match.num_tokens < _MIN_MATCH:
                return
            most = min(count, max(1, int(self._factor * match.num_tokens)))
            followed = list[int]()
            for token_id, frequency in tree.follow(match, most):
                joint *= frequency
                if joint < self._least:
                    return
                yield token_id, match.num_tokens + len(followed), frequency
                followed.append(token_id)
            if not followed or len(followed) == most:
                return
            text += followed
            count -= len(followed)

    def num_unread_tokens(self, request: Request) -> int:
        """Return 0: the index is cheap to build."""
        return 0

    def forget(self, request: Request) -> None:
        """Keep the text of a request that has ended, its answer first, without what an earlier one had in the cache.

        As many suffixes are added at once as it has answered tokens, so answers are there for the next request.
        """
        self._own.forget(request)
        self.confidence.forget(request)
        num_prompt, num_output = request.num_prompt_tokens, request.num_output_tokens
        if not num_output or not self._max_tokens or self._num_waiting >= _MAX_WAITING_TOKENS:
            return
        tree = self._trees.setdefault(_owner(request), SuffixTree(self._max_depth))
        self._trees.move_to_end(_owner(request))
        first = max(0, num_prompt - _MAX_MATCH, request.num_tokens - _MAX_KEPT_TOKENS)
        answer = request.token_ids[first:]
        tree.add(answer, is_preferred=True)
        first = max(0, request.num_cached_tokens - self._max_depth, num_prompt - _MAX_KEPT_TOKENS)
        prompt = request.token_ids[first:num_prompt]
        tree.add(prompt)
        self._num_waiting += len(answer) + len(prompt)
        self._work(min(len(answer), _MAX_KEPT_AT_ONCE))

    def _work(self, limit: int) -> None:
        """Add suffixes that wait, of the latest tenants first, and make room for them."""
        for owner in list(islice(reversed(self._trees), limit)) if self._num_waiting else ():
            tree = self._trees.get(owner)  # none if it has just lost its last token
            while tree is not None and tree.num_waiting and limit > 0:
                limit -= 1
                if self.num_tokens >= self._max_tokens:
                    self._remove_one()
                tree.add_next()
                self._num_waiting -= 1
                self.num_tokens += 1

    def _remove_one(self) -> None:
        """Remove the oldest suffix of the tenant that has most, as of 64 suffixes ago."""
        victim = self._trees.get(self._victim) if self._victim is not None else None
        self._num_removals += 1
        if victim is None or not victim.num_suffixes or self._num_removals % _MAX_WORK == 0:
            self._victim, victim = max(self._trees.items(), key=lambda item: item[1].num_suffixes)
        victim.remove_oldest()
        self.num_tokens -= 1
        if not victim.num_suffixes and not victim.num_waiting:
            assert self._victim is not None
            del self._trees[self._victim]

    def check(self) -> None:
        """Prove that the bound holds, and each tree."""
        assert self.num_tokens == sum(tree.num_suffixes for tree in self._trees.values()) <= self._max_tokens
        assert self._num_waiting == sum(tree.num_waiting for tree in self._trees.values())
        for tree in self._trees.values():
            tree.check()


def _owner(request: Request) -> Owner:
    return request.tenant, request.params.cache_salt
