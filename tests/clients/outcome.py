"""Outcome of a client's script, in cells of the table in RESULTS.md."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

HEADER = "| client | version | demo | smollm2 | only accepted | date |"
ACCEPTED = "_accepted"  # ends the name of a check that shows a right answer, but not what a model makes of it


@dataclass(frozen=True)
class Outcome:
    """Outcome of a script's run: the printed version, the names of the checks that passed, and of those that failed."""

    version: str
    passed: tuple[str, ...]
    failed: tuple[str, ...]

    @classmethod
    def of(cls, output: str, *, exit_code: int) -> Self:
        """Read a script's output. A script that did not end by its checks has failed."""
        passed, failed = (re.findall(rf"^{word} +(\w+)$", output, re.MULTILINE) for word in ("ok", "FAIL"))
        if (exit_code != 0) != bool(failed) or not passed + failed:
            failed.append(f"exit code {exit_code}")
        first = re.match(r"\S+ (\S+)\n", output)
        return cls(first[1] if first else "?", tuple(passed), tuple(failed))

    @property
    def cell(self) -> str:
        """Return a cell like `17 of 18: errors failed`."""
        counts = f"{len(self.passed)} of {len(self.passed) + len(self.failed)}"
        return f"{counts}: {', '.join(self.failed)} failed" if self.failed else counts

    @property
    def accepted(self) -> str:
        """Names of the checks in which a model's choice was left open."""
        return ", ".join(
            name.removesuffix(ACCEPTED).replace("_", " ") for name in self.passed if name.endswith(ACCEPTED)
        )


def write_row(path: Path, cells: tuple[str, ...], *, names: tuple[str, ...]) -> str:
    """Put a row into the file's table, which has a row per name of `names` in that order. Returns the row."""
    before, table = path.read_text().split(HEADER)
    rows = {line.split("|")[1].strip(): line for line in table.splitlines() if line.startswith("| ")}
    rows[cells[0]] = row = f"| {' | '.join(cells)} |"
    lines = [HEADER, "|---" * HEADER.count(" | ") + "|---|", *(rows[name] for name in names if name in rows)]
    path.write_text(before + "\n".join(lines) + "\n")
    return row
