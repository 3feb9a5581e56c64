"""EntryIndex: which entries the folder holds, how much they take, and which one is the next to go.

    rank = rank of the last evicted entry + tokens that need not be computed / bytes

The lowest rank goes first (GreedyDual-Size, Cao and Irani 1997): tokens saved for the same bytes, and recency, because
a hit ranks an entry anew and every eviction lowers the others. Of entries of one rank the one used first goes first; a
prompt's blocks are used from the last to the first, so its end goes before its beginning, without which the end cannot
be found. Below half of its even share a tenant loses nothing to others. Knows no files.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

_SHARE_KEPT = 0.5
_FEW_ENTRIES = 64  # too few to clean up


@dataclass(eq=False, slots=True)
class _Entry:
    tenant: str
    num_bytes: int
    gain: int
    place: tuple[float, int] = (0.0, 0)  # rank, and the number of its last use


class EntryIndex:
    """Entries by path. A call costs O(log entries)."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: dict[str, _Entry] = {}
        self._bytes_of = Counter[str]()  # by tenant
        # By tenant; every entry is there at its place.
        self._heaps: defaultdict[str, list[tuple[tuple[float, int], str]]] = defaultdict(list)
        self._counts = Counter[str]()  # by tenant
        self._num_uses = 0
        self._level = 0.0
        self.num_bytes = 0
        self.num_evictions = 0

    def __contains__(self, path: str) -> bool:
        return path in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, path: str, *, tenant: str, num_bytes: int, gain: int) -> None:
        """Add an entry, or replace one. `gain`: tokens that need not be computed with it."""
        self.remove(path)
        self._entries[path] = _Entry(tenant, num_bytes, gain)
        self._bytes_of[tenant] += num_bytes
        self._counts[tenant] += 1
        self.num_bytes += num_bytes
        self.use([path])

    def use(self, paths: Iterable[str]) -> None:
        """Record a hit for each of these entries that exists."""
        for path in paths:
            if (entry := self._entries.get(path)) is not None:
                self._num_uses += 1
                entry.place = (self._level + entry.gain / max(1, entry.num_bytes), self._num_uses)
                heap = self._heaps[entry.tenant]
                heappush(heap, (entry.place, path))
                if len(heap) > 2 * self._counts[entry.tenant] + _FEW_ENTRIES:
                    heap[:] = [item for item in heap if self._is_current(item)]
                    heapify(heap)

    def remove(self, path: str) -> None:
        """Drop an entry, if it is there."""
        entry = self._entries.pop(path, None)
        if entry is not None:
            self.num_bytes -= entry.num_bytes
            self._bytes_of[entry.tenant] -= entry.num_bytes
            self._counts[entry.tenant] -= 1
            if not self._counts[entry.tenant]:
                for by_tenant in (self._counts, self._bytes_of, self._heaps):
                    del by_tenant[entry.tenant]

    def make_room(self, num_bytes: int) -> list[str]:
        """Drop entries until `num_bytes` more fit. Returns their paths."""
        evicted = []
        while self._entries and self.num_bytes + num_bytes > self._max_bytes:
            path = self._next()
            self._level = max(self._level, self._entries[path].place[0])
            self.remove(path)
            self.num_evictions += 1
            evicted.append(path)
        return evicted

    def _next(self) -> str:
        floor = _SHARE_KEPT * self._max_bytes / len(self._bytes_of)
        above = [tenant for tenant, num_bytes in self._bytes_of.items() if num_bytes > floor]
        return min(map(self._first, above or self._bytes_of))[1]

    def _first(self, tenant: str) -> tuple[tuple[float, int], str]:
        heap = self._heaps[tenant]
        while not self._is_current(heap[0]):
            heappop(heap)
        return heap[0]

    def _is_current(self, item: tuple[tuple[float, int], str]) -> bool:
        entry = self._entries.get(item[1])
        return entry is not None and entry.place == item[0]

    def check(self) -> None:
        """Prove that bytes are counted right, and that no entry would be overlooked."""
        assert self.num_bytes == sum(entry.num_bytes for entry in self._entries.values()) <= self._max_bytes
        counts = Counter[str]()
        for entry in self._entries.values():
            counts[entry.tenant] += entry.num_bytes
        assert counts == self._bytes_of
        assert Counter(entry.tenant for entry in self._entries.values()) == self._counts
        in_heaps = {item for heap in self._heaps.values() for item in heap}
        assert {(entry.place, path) for path, entry in self._entries.items()} <= in_heaps
