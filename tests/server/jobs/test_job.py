"""Thousands of ended jobs are kept, so a job is small."""

import tracemalloc

from splitfuse.server.jobs.job import JOB_BYTES, Job


def test_a_job_takes_less_than_it_counts() -> None:
    Job("first", model="m")  # classes are set up by the first instance
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        jobs = [Job(str(number), model="m") for number in range(100)]
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / len(jobs) < JOB_BYTES / 1.5
