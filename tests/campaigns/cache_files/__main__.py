"""`make cache-files CASES=10000`: files of the prefix cache on disk, torn, foreign, stale and hostile.

Each case changes one to three files behind the back of an engine, which then answers a known prompt: with the tokens
and logprobs of the first time, to the bit, whatever the files hold. Half of the cases have a model with recurrent
layers. `ARGS="--case N"` repeats one.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from cache_file_mutations import SavedFiles
from tiny_models import save_model

from splitfuse.engine import LLM, SamplingParams
from splitfuse.engine.extras.disk_cache import disk_cache
from splitfuse.engine.extras.disk_cache.disk_cache import DiskCache
from splitfuse.engine.extras.weight_updates.live_model import restart

_MODELS = ("llama-gqa-tied", "qwen3-next")
_PARAMS = SamplingParams(temperature=0, max_tokens=3, logprobs=3, ignore_eos=True)
_NUM_PROMPT = 100


class Subject:
    """Engine over a folder of whole files, and its answer without them."""

    def __init__(self, model: str, folder: Path) -> None:
        folder.mkdir()
        save_model(model, folder / "model")
        rng = random.Random(7)
        self._prompt = [rng.randrange(20, 200) for _ in range(_NUM_PROMPT)]
        self._llm = LLM(
            str(folder / "model"),
            dtype="float32",
            num_kv_blocks=64,
            max_num_seqs=4,
            num_threads=1,
            prefix_cache_dir=str(folder / "cache"),
        )
        self._disk: Any = self._llm.engine.part(DiskCache)
        self._expected = self._answer()
        self._files = SavedFiles(folder / "cache")
        self.is_hit = self._answer() == self._expected and self._num_cached >= _NUM_PROMPT - 32

    def _answer(self) -> tuple[object, ...]:
        restart(self._llm.engine.core.scheduler)  # forgets the cache in memory
        self._disk._staged.clear()
        self._disk._num_staged_bytes = 0
        (output,) = self._llm.generate([self._prompt], _PARAMS)
        self._num_cached = output.num_cached_tokens or 0
        self._disk.flush()
        self._llm.engine.core.scheduler.check()
        return output.outputs[0].token_ids, output.outputs[0].logprobs

    def fault(self, seed: int) -> str | None:
        """Run one case. Returns what is wrong, None if nothing is."""
        self._files.restore()
        done = self._files.mutate(random.Random(seed))
        if self._answer() != self._expected:
            return f"{done}: another answer, after {self._num_cached} cached tokens"
        return None

    def close(self) -> None:
        """End the engine."""
        self._llm.close()


def main() -> int:
    """Run the campaign. Returns 1 if an answer differs."""
    parser = argparse.ArgumentParser(prog="cache_files", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--case", type=int, help="this one alone")
    options = parser.parse_args()
    numbers = range(options.first, options.first + options.cases) if options.case is None else [options.case]
    # A busy machine takes longer to hash the weights, and writes nothing until then.
    disk_cache._NAMESPACE_WAIT_S = 60.0
    faults, begin = [], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="splitfuse-") as folder:
        subjects = [Subject(model, Path(folder, model)) for model in _MODELS]
        if not all(subject.is_hit for subject in subjects):
            print("whole files are no hit")
            return 1
        for number in numbers:
            if (fault := subjects[number % len(subjects)].fault(number)) is not None:
                faults.append(fault)
                model = _MODELS[number % len(_MODELS)]
                print(f'case {number} {model}: {fault}; again: ARGS="--case {number}"', flush=True)
            if number % 1000 == 999:
                print(f"{number + 1} cases, {time.monotonic() - begin:.0f} s, {len(faults)} faults", flush=True)
        for subject in subjects:
            subject.close()
    print(f"{len(faults)} faults" if faults else f"{len(numbers)} cases, nothing wrong")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
