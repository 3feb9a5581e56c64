"""`make kills KILLS=1000`: kill -9 at random moments over requests of every kind; nothing is lost or delivered twice.

One server after another runs on one file of results, and is killed after a moment. Every job's stream is read over all
servers by Last-Event-ID; at its end it must equal the result, and the result an undisturbed server's.
"""

import argparse
import itertools
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
from kills.bodies import KINDS, Kind
from kills.job import Job
from served import Served

SETTINGS = ("--num-threads", "1", "--seed", "5", "--tool-call-parser", "hermes")
DRAFTS = ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}')
NUM_JOBS = 6  # jobs at once
DELETED_SHARE = 0.3  # share of the servers that are killed right after a deletion
LOGPROB_TOLERANCE = 1e-3
NUM_TRIES = 5  # of a request that is answered 503, each of them after 3 s
MAX_CRASHES = 3  # crashes after which a running job may fail as interrupted


def main() -> int:
    """Run the campaign. Returns 1 if anything was lost, repeated or changed."""
    parser = argparse.ArgumentParser(prog="kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=24 * 60.0)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        default="float32",
        help="in bfloat16 answers are not compared with an undisturbed server's",
    )
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.kills} kills", flush=True)
    expected = expected_answers() if options.dtype == "float32" else None
    with tempfile.TemporaryDirectory() as folder:
        path, rng = Path(folder, "results.db"), random.Random(options.seed)
        campaign = Campaign(path, options.dtype, expected, rng)
        campaign.run(kills=options.kills, until=time.monotonic() + 60 * options.minutes)
    print("\n".join(campaign.faults) or "nothing wrong")
    return 1 if campaign.faults else 0


class Campaign:
    """Campaign of servers that die on one file, and jobs that survive them."""

    def __init__(
        self,
        path: Path,
        dtype: str,
        expected: dict[str, dict[str, Any]] | None,
        rng: random.Random,
    ) -> None:
        """Prepare; `expected`: answers by kind, for kinds whose request determines the answer."""
        self.faults: list[str] = []
        self._settings = (*SETTINGS, "--dtype", dtype, "--results", str(path))
        self._expected = expected
        self._rng = rng
        self._jobs: list[Job] = []
        self._kinds = itertools.cycle(KINDS)
        self._counts: Counter[str] = Counter()
        self._resume_times: list[float] = []

    def run(self, *, kills: int, until: float) -> None:
        """Kill that many servers, then let the last one finish all jobs."""
        while self._counts["kills"] < kills and time.monotonic() < until and not self.faults:
            self._live_and_die()
            if self._counts["kills"] % 25 == 0:
                self._tell()
        with self._server() as served:
            self._submit(served, num_jobs=0)
            for job in self._jobs:
                answer_of(served, job)
                job.stop()
            self._judge()
        self._tell()

    def _server(self) -> Served:
        rng = self._rng
        sync = ("--results-sync", rng.choice(["full", "normal"]))
        drafts = DRAFTS if rng.random() < 0.3 else ()
        return Served(*self._settings, *sync, *drafts, is_forked=True)

    def _live_and_die(self) -> None:
        start = time.monotonic()
        with self._server() as served:
            self._resume_times.append(time.monotonic() - start)
            self._submit(served, num_jobs=NUM_JOBS - len(self._jobs))
            time.sleep(self._rng.expovariate(1 / 0.7))
            if self._rng.random() < DELETED_SHARE:
                self._delete_youngest(served)
            served.process.kill()
            served.process.wait()
            for job in self._jobs:
                job.stop()
                job.num_crashes += not job.has_ended
        self._counts["kills"] += 1
        self._judge()

    def _submit(self, served: Served, *, num_jobs: int) -> None:
        for job in self._jobs:
            job.read_from(served.url)
        for kind in itertools.islice(self._kinds, num_jobs):
            job = submit(served, kind)
            job.read_from(served.url)
            self._jobs.append(job)

    def _delete_youngest(self, served: Served) -> None:
        """Delete the youngest job, of which nothing may come back."""
        job = self._jobs.pop()
        with served.client() as client:
            status = client.delete(f"/result/{job.seq_id}").status_code
        self.faults += [] if status == 200 else [f"{job.kind.name}: {status} for its deletion"]
        self._counts["deleted"] += 1

    def _judge(self) -> None:
        for job in [job for job in self._jobs if job.has_ended or job.faults]:
            self._jobs.remove(job)
            self.faults += job.faults or self._faults_of(job)

    def _faults_of(self, job: Job) -> list[str]:
        result = job.result
        assert result is not None
        self._counts[job.kind.name] += 1
        self._counts["tokens"] += result["usage"]["completion_tokens"]
        self._counts["jobs over a crash"] += job.num_crashes > 0
        name = f"{job.kind.name} ({job.seq_id[:8]}, {job.num_crashes} crashes)"
        if (result["error"] or {}).get("code") == "interrupted" and job.num_crashes >= MAX_CRASHES:
            self._counts["interrupted"] += 1
            return []
        told = [job.token_ids.get(output["index"], []) for output in result["outputs"]]
        if told != [output["token_ids"] for output in result["outputs"]]:
            return [f"{name}: its stream told other tokens than its result"]
        expected = self._expected[job.kind.name] if self._expected and job.kind.has_fixed_answer else None
        if expected is not None and not is_same(comparable(result), expected):
            return [f"{name}: another result than undisturbed: {result['outputs']}"]
        return []

    def _tell(self) -> None:
        slowest = max(self._resume_times, default=0.0)
        print(f"{dict(self._counts)}, {len(self._jobs)} running, slowest start {slowest:.1f} s", flush=True)


def expected_answers() -> dict[str, dict[str, Any]]:
    """Return an undisturbed server's answers by kind."""
    with Served(*SETTINGS, "--dtype", "float32", is_forked=True) as served:
        return {kind.name: comparable(answer_of(served, submit(served, kind))) for kind in KINDS}


def submit(served: Served, kind: Kind) -> Job:
    """Submit a request of this kind. Returns its job. A busy machine may have no time for its grammar at once."""
    with served.client() as client:
        for _ in range(NUM_TRIES):
            answer = client.post(kind.path, json=kind.body)
            if answer.status_code != 503:
                break
        assert answer.status_code in (200, 202), answer.text
        body = answer.json()
    return Job(kind, body.get("seq_id") or body["id"].removeprefix("resp_"))


def answer_of(served: Served, job: Job) -> dict[str, Any]:
    """Wait for the job's result, and return it."""
    with served.client(timeout=90) as client:
        while True:
            result: dict[str, Any] = client.get(f"/result/{job.seq_id}?wait=60").json()
            if result["status"] not in ("queued", "running"):
                return result


def comparable(result: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a result that do not depend on time and server."""
    left_out = ("seq_id", "timings", "attempt", "usage", "weights_version")  # a stored result has no version
    return {name: value for name, value in result.items() if name not in left_out}


def is_same(one: Any, other: Any) -> bool:
    """True if two results are equal; logprobs differ in their last digits from batch to batch."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) < LOGPROB_TOLERANCE
    return bool(one == other)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except httpx.HTTPError as exc:
        sys.exit(f"a request failed while the server lived: {exc!r}")
