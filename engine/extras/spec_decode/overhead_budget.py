"""OverheadBudget: a token bucket in seconds, which bounds what speculation may cost in the long run.

It is filled with 0.5 % of the time that plain decoding takes and with every second that accepted drafts saved; every
second spent on drafts is taken out, for reading prompts a part at a time. While it is empty nothing is drafted, so
whatever a drafter does, 1 % is about all that it can cost. `plain` is everywhere the seconds of a step without drafts.
"""

_REFILL = 0.005  # of the time of plain decoding
_INITIAL_STEPS, _MAX_STEPS = 4.0, 32.0  # in plain steps
_MAX_OVERDRAFT_S = 2.0
_READING_SHARE = 0.01  # of plain decoding, or half of what was saved: so much of the reading is charged at a time


class OverheadBudget:
    """One per engine."""

    def __init__(self) -> None:
        self._available_s: float | None = None
        self._deferred_s = 0.0  # spent on reading, and not charged yet

    def available_s(self, plain: float) -> float:
        """Seconds that may be spent on drafts; with 0 or less, none."""
        if self._available_s is None:
            self._available_s = _INITIAL_STEPS * plain
        return self._available_s

    def num_steps_to_refill(self, plain: float) -> int:
        """Steps without drafts until the budget is no longer overdrawn."""
        return int(-self.available_s(plain) / (_REFILL * plain))

    def is_half_full(self, plain: float) -> bool:
        """Whether more than half of its capacity is there."""
        return self.available_s(plain) > _MAX_STEPS / 2 * plain

    def allows_reading(self, plain: float) -> bool:
        """Whether another prompt may be read: not too much reading waits to be charged."""
        return self._deferred_s <= _MAX_STEPS * plain

    def update(self, plain: float, *, num_steps: int, saved_s: float, draft_s: float, read_s: float) -> None:
        """Account for so many steps, in which drafts saved `saved_s` and took `draft_s`, and reading took `read_s`."""
        self._deferred_s += read_s
        charged = min(self._deferred_s, max(_READING_SHARE * plain, saved_s / 2))
        self._deferred_s -= charged
        available = self.available_s(plain) + (_REFILL * plain * num_steps + saved_s - draft_s - charged)
        self._available_s = min(max(available, -_MAX_OVERDRAFT_S), _MAX_STEPS * plain)
