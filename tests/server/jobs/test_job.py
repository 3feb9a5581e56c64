"""Thousands of ended jobs are kept, so a job is small."""

import sys
import tracemalloc
from dataclasses import fields

from splitfuse.engine import SamplingParams
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


def test_parameters_take_a_slot_a_field() -> None:
    """Each kept job has its own; with a dictionary of more than 29 fields they took 1.6 KB."""
    params = SamplingParams(max_tokens=5)
    assert sys.getsizeof(params) < 8 * (len(fields(params)) + 8)
    assert not hasattr(params, "__dict__")
