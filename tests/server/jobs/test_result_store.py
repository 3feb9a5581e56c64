"""The result store against its bounds, with a clock of the test's own."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from splitfuse.engine.core.outputs import OutputDelta
from splitfuse.engine.errors import QueueFullError
from splitfuse.server.http.errors import QuotaExceededError, ResultNotFoundError
from splitfuse.server.jobs.job import EVENT_BYTES, JOB_BYTES, Job
from splitfuse.server.jobs.job_index import JobIndex, ResultLimits
from splitfuse.server.jobs.result_backend import ResultBackend
from splitfuse.server.jobs.result_store import ResultStore

SHORT_BYTES = JOB_BYTES + EVENT_BYTES  # a job of one event


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def make_store(*, ttl=100.0, max_results=10, max_bytes=10**9, **more):
    clock = Clock()
    limits = ResultLimits(ttl=ttl, max_results=max_results, max_bytes=max_bytes, **more)
    return ResultStore(JobIndex(limits, clock=clock), ResultBackend()), clock


def make_job(name, *, owner=""):
    return Job(name, model="m", owner=owner)


def finish(job, *, text="x"):
    job.sink(OutputDelta(job.seq_id, 0, text, (1,), finish_reason="stop"))


def has(store, name):
    try:
        store.get(name, owner="")
    except ResultNotFoundError:
        return False
    return True


def test_ttl_counts_from_the_end():
    store, clock = make_store(ttl=100)
    job = make_job("a")
    store.add(job)
    clock.now = 1000
    assert has(store, "a")
    finish(job)
    clock.now = 1099.9
    assert has(store, "a")
    clock.now = 1100
    assert not has(store, "a")
    assert (len(store), store.num_bytes) == (0, 0)


def test_a_job_may_be_kept_for_less_long_but_not_for_longer():
    store, clock = make_store(ttl=100)
    for name, ttl_s in (("short", 10), ("long", 1000), ("plain", None)):
        store.add(job := Job(name, model="m", ttl_s=ttl_s))
        finish(job)
    store.check()
    clock.now = 10
    assert [has(store, name) for name in ("short", "long", "plain")] == [False, True, True]
    clock.now = 100
    assert [has(store, name) for name in ("long", "plain")] == [False, False]
    store.check()


def test_an_owner_above_the_quota_stays_refused():
    """More jobs may be unfinished after a restart than a lowered limit allows."""
    store, _ = make_store(max_unfinished=1)
    for name in "ab":
        store.index.insert(make_job(name, owner="me"))
    with pytest.raises(QuotaExceededError, match="1 results of yours are unfinished"):
        store.add(make_job("c", owner="me"))


def test_one_owner_has_so_many_unfinished_ones_and_no_more():
    store, _ = make_store(max_unfinished=2)
    jobs = {name: make_job(name, owner="me") for name in "abcd"}
    store.add(jobs["a"])
    store.add(jobs["b"])
    with pytest.raises(QuotaExceededError, match="2 results of yours are unfinished"):
        store.add(jobs["c"])
    store.add(make_job("x", owner="you"))
    finish(jobs["a"])
    store.add(jobs["c"])
    store.forget(jobs["b"])
    store.add(jobs["d"])
    store.check()
    with pytest.raises(QuotaExceededError):
        store.add(make_job("e", owner="me"))


async def test_one_owner_has_so_many_bytes_and_no_more():
    store, clock = make_store(ttl=100, max_owner_bytes=2 * SHORT_BYTES)
    jobs = {name: make_job(name, owner="me") for name in "ab"}
    for job in jobs.values():
        await store.check_quota("me")
        store.add(job)
        finish(job)
    num_bytes = sum(job.num_bytes for job in jobs.values())
    with pytest.raises(QuotaExceededError, match=f"your results take {num_bytes} bytes.*is {2 * SHORT_BYTES}"):
        await store.check_quota("me")
    await store.check_quota("you")
    store.forget(jobs["a"])
    await store.check_quota("me")
    store.add(make_job("c", owner="me"))
    clock.now = 100
    await store.check_quota("me")


def test_oldest_finished_goes_first_and_running_never():
    store, _ = make_store(max_results=3)
    jobs = {name: make_job(name) for name in "abcd"}
    for name in "abc":
        store.add(jobs[name])
    finish(jobs["c"])
    finish(jobs["b"])
    store.add(jobs["d"])
    assert [name for name in "abcd" if has(store, name)] == ["a", "b", "d"]
    store.check()


def test_what_has_gone_to_make_room_leaves_nothing_until_it_would_have_expired():
    store, clock = make_store(ttl=100, max_results=10)
    for number in range(1000):
        clock.now = number / 100
        job = make_job(str(number))
        store.add(job)
        finish(job)
    assert len(store.index._expiries) < 100
    store.check()
    clock.now = 109.95
    assert not has(store, "994")
    assert has(store, "996")


def test_full_of_unfinished_jobs():
    store, _ = make_store(max_results=2)
    store.add(make_job("a"))
    store.add(make_job("b"))
    with pytest.raises(QueueFullError):
        store.add(make_job("c"))
    assert len(store) == 2


def test_bytes_are_bounded_but_the_newest_stays():
    store, _ = make_store(max_bytes=3 * SHORT_BYTES)
    for name in "abcd":
        job = make_job(name)
        store.add(job)
        finish(job)
    assert [name for name in "abcd" if has(store, name)] == ["c", "d"]
    big = make_job("e")
    store.add(big)
    finish(big, text="x" * 10_000)
    assert [name for name in "abcde" if has(store, name)] == ["e"]
    store.check()


def test_owner():
    store, _ = make_store()
    store.add(make_job("a", owner="alice"))
    assert store.get("a", owner="alice").seq_id == "a"
    for name, owner in [("a", "bob"), ("a", ""), ("b", "alice")]:
        with pytest.raises(ResultNotFoundError) as info:
            store.get(name, owner=owner)
        assert str(info.value) == str(ResultNotFoundError())


def test_a_forgotten_job_no_longer_counts():
    store, _ = make_store()
    job = make_job("a")
    store.add(job)
    store.forget(job)
    store.forget(job)
    finish(job)
    assert (len(store), store.num_bytes) == (0, 0)


operations = st.lists(
    st.tuples(st.sampled_from(["add", "token", "finish", "forget", "tick", "get"]), st.integers(0, 7)), max_size=60
)


@settings(max_examples=200, deadline=None)
@given(operations)
def test_any_history_keeps_the_invariants(history):
    store, clock = make_store(ttl=5, max_results=4, max_bytes=8 * SHORT_BYTES)
    jobs: dict[int, Job] = {}
    for number, (what, which) in enumerate(history):
        job = jobs.get(which)
        if what == "tick":
            clock.now += which
        elif what == "add":
            fresh = make_job(f"{which}-{number}")
            try:
                store.add(fresh)
                jobs[which] = fresh
            except QueueFullError:
                assert len(store) == 4
        elif job is not None and what == "get":
            has(store, job.seq_id)
        elif job is not None and what == "forget":
            store.forget(job)
        elif job is not None and not job.finished:
            job.sink(OutputDelta("r", 0, "x", (1,), finish_reason="stop" if what == "finish" else None))
        store.check()
        assert len(store) <= 4
