"""OverheadBudget: a token bucket in seconds, which bounds the cost of speculation in the long run.

The bucket gains 0.5 % of the time of plain decoding and every second that accepted drafts saved. It loses every second
spent on drafts; seconds of reading prompts are charged in parts. While the bucket is empty no tokens are drafted, so no
drafter can cost more than about 1 %. `plain` is everywhere the seconds of a step without drafts.
"""

_REFILL = 0.005  # share of the time of plain decoding
_INITIAL_STEPS, _MAX_STEPS = 4.0, 32.0  # first and largest contents, in plain steps
_MAX_OVERDRAFT_S = 2.0
_READING_SHARE = 0.01  # reading charged per update: this share of plain decoding, or half of the saved time if more


class OverheadBudget:
    """Budget of seconds, one per engine."""

    def __init__(self) -> None:
        self._available_s: float | None = None
        self._deferred_s = 0.0  # seconds of reading that are not charged yet

    def available_s(self, plain: float) -> float:
        """Return the seconds that may be spent on drafts; 0 or less allows no drafts."""
        if self._available_s is None:
            self._available_s = _INITIAL_STEPS * plain
        return self._available_s

    def num_steps_to_refill(self, plain: float) -> int:
        """Return the number of steps without drafts until the budget is no longer overdrawn."""
        return int(-self.available_s(plain) / (_REFILL * plain))

    def is_half_full(self, plain: float) -> bool:
        """Return True if the budget holds more than half of its capacity."""
        return self.available_s(plain) > _MAX_STEPS / 2 * plain

    def allows_reading(self, plain: float) -> bool:
        """Return True if another prompt may be read, because little reading waits to be charged."""
        return self._deferred_s <= _MAX_STEPS * plain

    def update(self, plain: float, *, num_steps: int, saved_s: float, draft_s: float, read_s: float) -> None:
        """Account for `num_steps`, in which drafts saved `saved_s` and took `draft_s`, and reading took `read_s`."""
        self._deferred_s += read_s
        charged = min(self._deferred_s, max(_READING_SHARE * plain, saved_s / 2))
        self._deferred_s -= charged
        available = self.available_s(plain) + (_REFILL * plain * num_steps + saved_s - draft_s - charged)
        self._available_s = min(max(available, -_MAX_OVERDRAFT_S), _MAX_STEPS * plain)
