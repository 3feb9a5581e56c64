"""Suffix tree, compared with counting by hand."""

import random
from collections import Counter, deque

import pytest

from splitfuse.engine.extras.spec_decode.suffix_tree import Match, SuffixTree


def counted(suffixes: list[tuple[int, ...]]) -> Counter[tuple[int, ...]]:
    """Count every piece at the beginning of a suffix."""
    return Counter(suffix[:length] for suffix in suffixes for length in range(1, len(suffix) + 1))


@pytest.mark.parametrize("seed", range(60))
def test_counts_are_those_of_an_exhaustive_count(seed: int) -> None:
    rng = random.Random(seed)
    depth, vocab = rng.randint(2, 9), rng.choice((2, 3, 10))
    tree, alive, waiting = SuffixTree(depth), deque[tuple[int, ...]](), deque[tuple[int, ...]]()
    past: list[list[int]] = []
    for _ in range(25):
        if rng.random() < 0.5:
            text = [rng.randrange(vocab) for _ in range(rng.randint(0, 12))]
            if past and rng.random() < 0.4:
                text = rng.choice(past) + text
            past.append(text)
            tree.add(text)
            waiting.extend(tuple(text[start : start + depth]) for start in range(len(text)))
        for _ in range(rng.randint(0, 8)):
            if waiting and rng.random() < 0.7:
                tree.add_next()
                alive.append(waiting.popleft())
            elif alive:
                tree.remove_oldest()
                alive.popleft()
            tree.check()
        counts = counted(list(alive))
        assert tree.num_suffixes == len(alive)
        assert all(tree.count(piece) == count for piece, count in counts.items())
        probe = [rng.randrange(vocab) for _ in range(rng.randint(1, depth))]
        assert tree.count(probe) == counts[tuple(probe)]
        text = [rng.randrange(vocab) for _ in range(12)]
        match = tree.match(text, depth)
        longest = max((n for n in range(1, depth) if counts[tuple(text[-n:])]), default=0)
        found = match.num_tokens if match else 0
        # While the suffixes of a text are being added, a long end may be there before its own ends.
        assert found == longest or (waiting and found < longest)
        if match is not None:
            _check_draft(tree, match, tuple(text[-found:]), counts, rng.randint(1, 6))


def _check_draft(
    tree: SuffixTree, match: Match, seen: tuple[int, ...], counts: Counter[tuple[int, ...]], most: int
) -> None:
    """Every drafted token is a most frequent one behind those before it, and its frequency is right."""
    drafted = list(tree.follow(match, most))
    assert len(drafted) <= most
    for token, frequency in drafted:
        following = {piece[-1]: count for piece, count in counts.items() if piece[:-1] == seen}
        assert following[token] == max(following.values())
        assert frequency == following[token] / counts[seen]
        seen += (token,)


def test_a_frequent_continuation_comes_first() -> None:
    tree = SuffixTree(8)
    for text in ([1, 2, 3, 4], [1, 2, 3, 5, 6], [1, 2, 3, 5, 7]):
        tree.add(text)
    while tree.num_waiting:
        tree.add_next()
    match = tree.match([9, 1, 2], 8)
    assert match is not None
    assert list(tree.follow(match, 2)) == [(3, 1.0), (5, 2 / 3)]
    assert list(tree.follow(match, 9))[2][1] == 1 / 2


def test_equal_texts_take_no_more_nodes_than_one() -> None:
    rng = random.Random(1)
    tree, text = SuffixTree(64), [rng.randrange(1000) for _ in range(2000)]
    for _ in range(3):
        tree.add(text)
    while tree.num_waiting:
        tree.add_next()
    tree.check()
    nodes, left = 0, [tree._root]
    while left:
        nodes += 1
        left += left.pop().children.values()
    assert nodes < 1.6 * len(text)
