"""ConnectionLimit: counts open connections, in all and per address, and decides if another is allowed."""

from collections import Counter


class ConnectionLimit:
    """Counter of open connections. One address gets at most half of them, so that it cannot shut out the others.

    Addresses of this machine have no limit of their own: they often belong to a proxy that carries many clients.
    """

    def __init__(self, max_connections: int) -> None:
        self.num_open = 0
        self.num_refused = 0
        self._max_connections = max_connections
        self._max_per_address = (max_connections + 1) // 2
        self._open: Counter[str] = Counter()

    def refusal(self, address: str) -> str | None:
        """Return the reason to refuse a connection from this address, None to allow it. Counts refusals."""
        limit = f"{self._max_connections}, --max-connections"
        is_local = address in ("", "::1") or address.startswith("127.")  # a Unix socket has none
        if self.num_open >= self._max_connections:
            reason = f"the server has as many connections as it takes ({limit})"
        elif self._open[address] >= self._max_per_address and not is_local:
            reason = f"your address has as many connections as one may have ({self._max_per_address}, half of {limit})"
        else:
            return None
        self.num_refused += 1
        return f"{reason}; close some or try again later"

    def add(self, address: str) -> None:
        """Count a connection that was opened."""
        self.num_open += 1
        self._open[address] += 1

    def remove(self, address: str) -> None:
        """Count a connection that was closed."""
        self.num_open -= 1
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]

    def check(self) -> None:
        """Assert the invariants."""
        assert self.num_open == self._open.total()
        assert all(num > 0 for num in self._open.values())
