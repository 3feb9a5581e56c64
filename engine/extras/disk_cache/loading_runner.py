"""LoadingRunner: runner that copies read entries into the cache before the step that needs them computes."""

from ...core.batch import NO_MOVES, Batch, Moves, RowOutput
from ...core.ports import Runner
from .activity import Activity
from .cache_bytes import Bytes, CacheBytes


class LoadingRunner:
    """Runner over another one. `blocks` and `states` to load are added while a step is scheduled."""

    def __init__(self, runner: Runner, memory: CacheBytes, activity: Activity) -> None:
        self._runner, self._memory, self._activity = runner, memory, activity
        self.blocks: list[tuple[int, Bytes]] = []
        self.states: list[tuple[int, Bytes]] = []

    def move(self, moves: Moves) -> None:
        """Copy blocks. A block to load may be one that is swapped out first, or copied afterwards."""
        if not self.blocks and not self.states:
            self._runner.move(moves)
            return
        beside = moves.beside or NO_MOVES
        self._runner.move(Moves(moves.swap_out, [], [], Moves(beside.swap_out, [], [])))
        self._load()
        self._runner.move(Moves([], moves.swap_in, moves.copies, Moves([], beside.swap_in, [])))

    def run(self, batch: Batch) -> list[RowOutput]:
        """Compute the batch."""
        with self._activity.running():
            if self.blocks or self.states:
                self._load()
            return self._runner.run(batch)

    def _load(self) -> None:
        blocks, self.blocks = self.blocks, []
        states, self.states = self.states, []
        for block, payload in blocks:
            self._memory.write_block(block, payload)
        for slot, payload in states:
            self._memory.write_slot(slot, payload)
