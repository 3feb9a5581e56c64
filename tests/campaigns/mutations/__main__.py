"""`make mutations MUTATIONS=12000`: model files with deliberate changes, 2,000 in folders and 10,000 of GGUF.

Each model loads and generates, or is refused by one line, in little time and memory. Processes that load several
mutants in turn end by their limits, not the campaign. `ARGS="--case N"` loads one of them again; `ARGS="--first N"`
begins there.
"""

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # a forked process lacks the threads of torch

from gguf_files import GGUF_HYBRIDS, GGUF_MODELS
from mutations.attempt import outcome
from mutations.loader import Verdict, verdicts
from mutations.mutants import Mutant, mutant
from mutations.originals import folder_models, gguf_models
from tiny_models import CONFIGS
from transformers.utils.logging import disable_progress_bar

_MAX_FAULTS = 20
_SLICE = 500
GGUF_NAMES = [*GGUF_MODELS, *GGUF_HYBRIDS]


def main() -> int:
    """Run the campaign. Returns 1 if a mutant did anything but load or be refused by a line."""
    parser = argparse.ArgumentParser(prog="mutations", description=__doc__)
    parser.add_argument("--mutations", type=int, default=12_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first mutant")
    parser.add_argument("--case", type=int, help="load this one here, and show what happens")
    options = parser.parse_args()
    disable_progress_bar()
    with tempfile.TemporaryDirectory(prefix="splitfuse-") as folder:
        originals = folder_models(Path(folder), sorted(CONFIGS)), gguf_models(Path(folder), GGUF_NAMES)
        if options.case is not None:
            return _one(mutant(options.case, *originals), Path(folder))
        numbers = range(options.first, options.first + options.mutations)
        return _many([mutant(number, *originals) for number in numbers], Path(folder))


def _one(case: Mutant, folder: Path) -> int:
    print(f"{case.original.path.relative_to(folder)}, {case.name}, {len(case.content)} bytes")
    print(outcome(case.written_to(folder / "case"), is_short=case.is_short))
    return 0


def _many(mutants: list[Mutant], folder: Path) -> int:
    print(f"mutants {mutants[0].number} to {mutants[-1].number}", flush=True)
    seen: Counter[tuple[str, str]] = Counter()
    faults: list[str] = []
    begin = time.monotonic()
    for judged in verdicts(mutants, folder):
        seen[judged.mutant.kind, judged.word] += 1
        if judged.fault is not None:
            faults.append(_told(judged))
            print(faults[-1], flush=True)
        if seen.total() % _SLICE == 0:
            rate = seen.total() / (time.monotonic() - begin)
            print(f"{seen.total()} mutants, {rate:.0f} per second, {len(faults)} faults", flush=True)
        if len(faults) == _MAX_FAULTS:
            break
    for kind in sorted({kind for kind, _ in seen}):
        print(f"{kind:24} { ({word: count for (of, word), count in sorted(seen.items()) if of == kind}) }")
    print(f"{len(faults)} faults" if faults else f"{seen.total()} mutants, nothing wrong")
    return int(bool(faults))


def _told(judged: Verdict) -> str:
    case = judged.mutant
    where = f"{case.original.folder.name}/{case.name}"
    return f'mutant {case.number} ({where}): {judged.fault}; again: make mutations ARGS="--case {case.number}"'


if __name__ == "__main__":
    sys.exit(main())
