"""BatchesPart: the files and batches of one server."""

import time
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ....engine.language.workers.shares import note_sharer
from ...extension import Part
from ..durable.durable_backend import DurableBackend
from ..durable.memory_store import MemoryStore, StoreUser
from . import BatchSettings
from .batch import Batch
from .batches import Batches

if TYPE_CHECKING:
    from ...service import Service


class BatchesPart(Part):
    """Part with the batches: where results are, in memory or on disk."""

    service: "Service"

    @cached_property
    def batches(self) -> Batches:
        """The batches. In a shared store some run elsewhere."""
        settings, answer, store = self.service.settings.section(BatchSettings), self._answer, self.store
        backend = self.service.results.backend
        if not backend.is_shared:
            return Batches(store, settings, answer, clock=time.time)
        shared = self.service.extensions.first("shared_batches")
        return shared(backend, settings, answer, clock=time.time, may_claim=self._is_ready)  # type: ignore[no-any-return]

    @property
    def store(self) -> StoreUser:
        """The store on disk, else in memory."""
        backend = self.service.results.backend
        return backend if isinstance(backend, DurableBackend) else self._memory

    @cached_property
    def _memory(self) -> MemoryStore:
        return MemoryStore(clock=time.time)

    @property
    def num_unfinished(self) -> int:
        """Batches that run here."""
        return len(self.batches.tasks) if "batches" in vars(self) else 0

    async def start(self) -> None:
        """Go on with batches that an earlier process left."""
        if isinstance(self.service.results.backend, DurableBackend):
            await self.batches.resume()

    async def drain(self) -> None:
        """Begin no more lines."""
        await self.batches.drain()

    async def stop(self, *, has_crashed: bool = False) -> None:
        """Leave unfinished batches to the next process."""
        await self.batches.stop(has_crashed=has_crashed)
        if "_memory" in vars(self):
            self._memory.close()

    def _is_ready(self) -> bool:
        return self.service.state == "ready"

    async def _answer(self, batch: Batch, fields: Mapping[str, Any]) -> Any:
        note_sharer(batch.owner if self.service.settings.has_several_keys else "")
        run = self.service.endpoints[batch.endpoint]
        return await run(self.service, fields, owner=batch.owner, defaults=batch.defaults)
