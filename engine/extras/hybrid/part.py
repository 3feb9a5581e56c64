"""States: the part of an engine whose model has recurrent layers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...core.block_manager import BlockManager
from ...serving.engine_part import Assembly, EnginePart, NewCompanion, ServedModel

if TYPE_CHECKING:
    from .request_states import RequestStates


class States(EnginePart):
    """Part of an engine: its requests' states."""

    def __init__(self, model: ServedModel) -> None:
        super().__init__(model)
        self._states: RequestStates | None = None

    @classmethod
    def of(cls, model: ServedModel) -> "States | None":
        """Make the part for a model with recurrent layers; None for all others."""
        return None if model.runner.loaded.states is None else cls(model)

    def companions(self, companions: Sequence[NewCompanion], assembly: Assembly) -> Sequence[NewCompanion]:
        from .request_states import RequestStates  # here: most models have no states

        spec, weights = self.model.runner.loaded.states, assembly.config.tenant_weights
        assert spec is not None

        def new_states(blocks: BlockManager) -> RequestStates:
            self._states = RequestStates(spec, weights, blocks)
            return self._states

        return [*companions, new_states]

    def stats(self) -> dict[str, Any]:
        return {} if self._states is None else self._states.slots.stats()
