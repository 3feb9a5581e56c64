"""Checkpoint positions: after which tokens of a request its state is kept. A pure choice.

    prompt    [ grid | grid | branch off a cached prompt | grid | last block edge | last token ]
    output    [ the latest block edge, in place of the one before it ]

Positions are block edges, because cached blocks hold the tokens before an edge. The one exception is the last token of
a prompt: further outputs of the prompt start from the state before it. A row of many tokens passes many positions, and
keeps each.
"""

from typing import NamedTuple

from ...core.request import Request

_MOST_OF_ONE_PROMPT = 1 / 8  # share of all checkpoints; a longer prompt has a wider grid


class Position(NamedTuple):
    """Position of a checkpoint: the state after that many tokens."""

    num_tokens: int
    is_edge: bool  # False: only for further outputs of the prompt
    is_trail: bool = False  # True: the output's latest, until there is a later one
    is_inner: bool = False  # True: the end of the output will be of more use, but to branches


class CheckpointPositions(NamedTuple):
    """Chooser of positions. `grid`: tokens between checkpoints of a long prompt, all of which may have to be computed
    again after a branch.
    """

    block_size: int
    grid: int
    num_checkpoints: int

    def wanted(self, request: Request, *, begin: int, end: int, num_in_chain: int) -> list[Position]:
        """Return the positions that a row passes from a state after `begin` tokens to one after `end`, ascending.

        `num_in_chain`: tokens of the request that were in cached blocks at its admission: a later request may branch
        off there, too.
        """
        positions: list[Position] = []
        if end // self.block_size > begin // self.block_size:
            last = (request.num_prompt_tokens - 1) // self.block_size * self.block_size
            edges = set[int]()
            if begin < last:
                spacing = self._spacing(request.num_prompt_tokens)
                edges.update(range(begin // spacing * spacing + spacing, min(end, last) + 1, spacing))
            edges.update(edge for edge in (last, num_in_chain) if begin < edge <= end)
            positions += [
                Position(edge, True, is_trail=self._are_few and edge == last, is_inner=edge != num_in_chain)
                for edge in edges
            ]
            latest = end // self.block_size * self.block_size
            if latest > last and latest not in edges:
                positions.append(Position(latest, is_edge=True, is_trail=True))
        fork = request.num_prompt_tokens - 1
        if request.params.n > 1 and request.parent is None and max(begin, 1) <= fork <= end:
            positions.append(Position(fork, is_edge=False))
        return sorted(positions)

    def _spacing(self, num_prompt_tokens: int) -> int:
        """Return the grid's width for a prompt, a multiple of the block size."""
        spacing = -(-self.grid // self.block_size) * self.block_size
        if self._are_few:
            return num_prompt_tokens  # none
        while num_prompt_tokens // spacing > int(_MOST_OF_ONE_PROMPT * self.num_checkpoints):
            spacing *= 2
        return spacing

    @property
    def _are_few(self) -> bool:
        """True if there are so few checkpoints that a request keeps only its last one."""
        return _MOST_OF_ONE_PROMPT * self.num_checkpoints < 2
