"""Finding: one line of doctor's report."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One line of the report. `fix` is shown if it is not ok. With `is_needed` False the line is only a remark."""

    name: str
    text: str
    ok: bool = True
    fix: str = ""
    is_needed: bool = True

    @property
    def is_fault(self) -> bool:
        """True if something that every server needs is missing."""
        return self.is_needed and not self.ok

    def __str__(self) -> str:
        mark = "ok" if self.ok else "MISSING" if self.is_needed else "-"
        fix = f"\n{'':<21}fix: {self.fix}" if self.fix and not self.ok else ""
        return f"{self.name:<12} {mark:<7} {self.text}{fix}"

    def to_dict(self) -> dict[str, Any]:
        """Return the finding for --json."""
        fix = self.fix if self.fix and not self.ok else None
        return {"name": self.name, "ok": self.ok, "is_fault": self.is_fault, "text": self.text, "fix": fix}


def remark(name: str, text: str, *, fix: str = "") -> Finding:
    """Return a finding that is not ok and no fault."""
    return Finding(name, text, False, fix, is_needed=False)
