"""SuffixTree: how often each piece of past text occurred, and what followed (SuffixDecoding, arXiv 2411.04975).

A compressed tree of all suffixes of the kept sequences, each cut to `max_depth` tokens. A node's count is the number of
suffixes that begin with the tokens on the way to it: the number of occurrences of those tokens. Suffixes come and go in
one order, first in, first out, a few at a time, so memory is bounded and no call takes long.

    label of a node:  tokens[start:end] of the newest suffix that passes it, so a sequence that is gone is in no label
"""

from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple


class _Node:
    __slots__ = ("children", "count", "end", "start", "tokens")

    def __init__(self, tokens: Sequence[int], start: int, end: int, count: int) -> None:
        self.tokens = tokens
        self.start, self.end = start, end
        self.count = count
        self.children: dict[int, _Node] = {}


class Match(NamedTuple):
    """Place in the tree, behind `offset` tokens of a node's label, reached by the last `num_tokens` of a text."""

    node: _Node
    offset: int
    num_tokens: int


class _StoredSequence:
    """Sequence whose suffixes [num_removed, num_added) are in the tree."""

    __slots__ = ("num_added", "num_removed", "tokens")

    def __init__(self, token_ids: Sequence[int]) -> None:
        self.tokens = array("i", token_ids)
        self.num_added = self.num_removed = 0


class SuffixTree:
    """Tree of one tenant's sequences."""

    def __init__(self, max_depth: int) -> None:
        self._max_depth = max_depth
        self._root = _Node((), 0, 0, 0)
        self._kept: deque[_StoredSequence] = deque()  # in the order in which their suffixes were added
        self._adding: _StoredSequence | None = None  # the last of them, if not all of its suffixes are in the tree yet
        self._waiting: deque[_StoredSequence] = deque()
        self._preferred: deque[_StoredSequence] = deque()  # these come first
        self.num_waiting = 0  # suffixes to add

    @property
    def num_suffixes(self) -> int:
        """Number of suffixes in the tree, one for each token of the kept sequences."""
        return self._root.count

    def add(self, token_ids: Sequence[int], *, is_preferred: bool = False) -> None:
        """Queue a sequence, a preferred one before all others. `add_next` adds its suffixes one by one."""
        if token_ids:
            (self._preferred if is_preferred else self._waiting).append(_StoredSequence(token_ids))
            self.num_waiting += len(token_ids)

    def add_next(self) -> None:
        """Add the next suffix."""
        if self._adding is None:
            self._adding = (self._preferred or self._waiting).popleft()
            self._kept.append(self._adding)
        kept = self._adding
        self._insert(kept.tokens, kept.num_added)
        kept.num_added += 1
        self.num_waiting -= 1
        if kept.num_added == len(kept.tokens):
            self._adding = None

    def remove_oldest(self) -> None:
        """Remove the oldest suffix. There must be one."""
        kept = self._kept[0]
        self._remove(kept.tokens, kept.num_removed)
        kept.num_removed += 1
        if kept.num_removed == len(kept.tokens):
            self._kept.popleft()

    def _insert(self, tokens: Sequence[int], start: int) -> None:
        node, position, end = self._root, start, min(len(tokens), start + self._max_depth)
        node.count += 1
        while position < end:
            child = node.children.get(tokens[position])
            if child is None:
                node.children[tokens[position]] = _Node(tokens, position, end, 1)
                return
            length = child.end - child.start
            num_equal = _num_equal(tokens, position, end, child)
            if num_equal < length:
                child = self._split(node, child, num_equal)
            child.count += 1
            child.tokens, child.start, child.end = tokens, position, position + num_equal
            node, position = child, position + num_equal

    def _split(self, parent: _Node, child: _Node, length: int) -> _Node:
        """Put a node behind the first `length` tokens of a child's label, and return it."""
        middle = _Node(child.tokens, child.start, child.start + length, child.count)
        parent.children[middle.tokens[middle.start]] = middle
        child.start += length
        middle.children[child.tokens[child.start]] = child
        return middle

    def _remove(self, tokens: Sequence[int], start: int) -> None:
        path, position = [self._root], start
        end = min(len(tokens), start + self._max_depth)
        self._root.count -= 1
        while position < end:
            child = path[-1].children[tokens[position]]
            child.count -= 1
            if not child.count:
                del path[-1].children[tokens[position]]
                break
            position += child.end - child.start
            path.append(child)
        for parent, node in reversed(list(pairwise(path))):
            self._join(parent, node)

    def _join(self, parent: _Node, node: _Node) -> None:
        """Join a node with its only child, if no suffix ends between them."""
        if len(node.children) != 1:
            return
        (child,) = node.children.values()
        if child.count == node.count:
            child.start -= node.end - node.start  # the child's label continues the node's in one sequence
            parent.children[child.tokens[child.start]] = child

    def match(self, token_ids: Sequence[int], max_match: int) -> Match | None:
        """Find the longest end of a text that occurs here, of at most `max_match` tokens; None if there is none."""
        # Every end of an end that occurs occurs as well, so the length is found by bisection. While a text is being
        # added, its longest suffix first, a shorter match may be found.
        low, high, best = 1, min(len(token_ids), max_match, self._max_depth - 1), None
        while low <= high:
            middle = (low + high + 1) // 2
            found = self._walk(token_ids, middle)
            if found is None:
                high = middle - 1
            else:
                best, low = found, middle + 1
        return best

    def _walk(self, token_ids: Sequence[int], length: int) -> Match | None:
        node, position, end = self._root, len(token_ids) - length, len(token_ids)
        while position < end:
            child = node.children.get(token_ids[position])
            if child is None:
                return None
            num_equal = _num_equal(token_ids, position, end, child)
            position += num_equal
            if position == end:
                return Match(child, num_equal, length)
            if num_equal < child.end - child.start:
                return None
            node = child
        return None

    def follow(self, match: Match, count: int) -> Iterator[tuple[int, float]]:
        """Yield up to `count` most frequent next tokens, each with its share of all tokens that followed there."""
        node, start, frequency = match.node, match.node.start + match.offset, 1.0
        while count > 0:
            for token_id in node.tokens[start : min(node.end, start + count)]:
                yield token_id, frequency
                frequency = 1.0
                count -= 1
            if not node.children:
                return
            child = max(node.children.values(), key=_by_count)
            frequency = child.count / node.count
            node, start = child, child.start

    def count(self, token_ids: Sequence[int]) -> int:
        """Return how often these tokens occur, at most `max_depth` of them."""
        found = self._walk(token_ids, len(token_ids)) if token_ids else None
        return 0 if found is None else found.node.count

    def check(self) -> None:
        """Prove that counts add up, that labels are right, and that no node could be spared."""
        assert self._root.count == sum(kept.num_added - kept.num_removed for kept in self._kept)
        waiting = [*self._preferred, *self._waiting, *([] if self._adding is None else [self._adding])]
        assert self.num_waiting == sum(len(kept.tokens) - kept.num_added for kept in waiting)
        alive = {id(kept.tokens) for kept in self._kept}
        num_nodes, left = 0, [(self._root, 0)]
        while left:
            node, depth = left.pop()
            num_nodes += 1
            in_children = sum(child.count for child in node.children.values())
            assert node.count >= in_children
            assert depth <= self._max_depth
            if node is not self._root:
                assert node.end > node.start
                assert node.count > 0
                assert id(node.tokens) in alive, "a label of a sequence that is gone"
                assert len(node.children) != 1 or node.count > in_children
            for token, child in node.children.items():
                assert child.tokens[child.start] == token
                left.append((child, depth + child.end - child.start))
        assert num_nodes <= 2 * self._root.count + 1


def _num_equal(tokens: Sequence[int], position: int, end: int, node: _Node) -> int:
    """Return how many tokens from `position` on equal the node's label."""
    most = min(end - position, node.end - node.start)
    theirs, first = node.tokens, node.start
    count = 1  # the first one was looked up
    while count < most and tokens[position + count] == theirs[first + count]:
        count += 1
    return count


def _by_count(node: _Node) -> int:
    return node.count
