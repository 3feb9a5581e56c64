"""`make pairs SECONDS=3600 SEED=1`: features that meet. Each answer must equal, to the bit, an undisturbed server's.

Every pair of values of the switches occurs in a row, a server under mixed load, or in a request. Prints the number of
answers that were compared, of pairs, and of differences.
"""

import argparse
import random
import sys
import tempfile
import time
from typing import Any

from pairs.doors import DOORS
from pairs.files import Files
from pairs.planted import PLANTED
from pairs.row import Asked, Judged, run_row, undisturbed
from pairs.switches import NUMBERS, REQUEST, SERVER, Row, body, covering, pairs_of

LEAST_S = 4.0  # of load, for each row


def main() -> int:
    """Run the campaign. Returns 1 if an answer differed or a server did anything wrong."""
    parser = argparse.ArgumentParser(prog="pairs", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rows", type=int, help="run only the first rows")
    parser.add_argument("--planted", action="store_true", help="run servers with a bug each, which must be found")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    first = {name: next(iter(values)) for name, values in REQUEST.items()}
    drawn = [first | {"door": door, "n": "3", "temperature": "1"} for door in REQUEST["door"]]  # in no pair alone
    asked = [Asked(row, body(row, seed=number)) for number, row in enumerate([*covering(REQUEST, rng), *drawn])]
    with Files() as files:
        if options.planted:
            return _planted(asked, files, seconds=options.seconds / len(PLANTED), seed=options.seed)
        return _run(asked, covering(SERVER, rng)[: options.rows], files, seconds=options.seconds, seed=options.seed)


def _run(asked: list[Asked], rows: list[Row], files: Files, *, seconds: float, seed: int) -> int:
    start, answers, results = time.monotonic(), _Undisturbed(asked, files), Judged()
    pairs = set().union(*(pairs_of(request.row) for request in asked))
    for number, row in enumerate(rows):
        expected, left = answers.of(row), seconds - (time.monotonic() - start)
        row_s = max(LEAST_S, left / (len(rows) - number) - 15)
        with tempfile.TemporaryDirectory(prefix="pairs-") as folder:
            judged = run_row(row, asked, expected, files, folder=folder, seconds=row_s, seed=seed + number)
        results.add(judged)
        print("\n".join(judged.faults), end="\n" if judged.faults else "", flush=True)
        pairs |= pairs_of(row)
        # A request's switch meets a server's in every row.
        sent = [*asked, *(Asked({"door": name}, door.body) for name, door in DOORS.items())]
        pairs |= {(one, other) for request in sent for one in request.row.items() for other in row.items()}
        print(f"row {number + 1} of {len(rows)}: {judged}; {' '.join(f'{k}={v}' for k, v in row.items())}", flush=True)

    print(f"{results.num_answers} answers, {len(pairs)} pairs, {results.num_different} different")
    return int(results.is_wrong)


def _planted(asked: list[Asked], files: Files, *, seconds: float, seed: int) -> int:
    """Run a server with each planted bug. Returns 1 if one is not found."""
    answers, num_found = _Undisturbed(asked, files), 0
    for name, bug in PLANTED.items():
        row = bug.row()
        program = (sys.executable, "-P", "-m", "pairs.planted", name)
        with tempfile.TemporaryDirectory(prefix="pairs-") as folder:
            most_s = max(LEAST_S, seconds - 10)
            judged = run_row(
                row,
                asked,
                answers.of(row),
                files,
                folder=folder,
                seconds=most_s,
                seed=seed,
                program=program,
                until_found=True,
            )
        num_found += judged.is_wrong
        told = "found" if judged.is_wrong else "MISSED"
        print(f"{told} {name}: {judged} {'; '.join(judged.faults)[-300:]}", flush=True)
    print(f"{num_found} of {len(PLANTED)} found")
    return int(num_found < len(PLANTED))


class _Undisturbed:
    """Answers of servers without load, by the switches on which their bits may depend."""

    def __init__(self, asked: list[Asked], files: Files) -> None:
        self._asked, self._files = asked, files
        self._kept: dict[tuple[str, ...], dict[str, Any]] = {}

    def of(self, row: Row) -> dict[str, Any]:
        pooler = "off" if row["lora"] == "on" else "on"
        alone = {name: row[name] for name in (*NUMBERS, "lora")} | {"pooler": pooler}
        key = tuple(alone.values())
        if key not in self._kept:
            self._kept[key] = undisturbed(alone, self._asked, self._files)
        return self._kept[key]


if __name__ == "__main__":
    sys.exit(main())
