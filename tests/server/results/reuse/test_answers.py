"""Kept answers stay within their limits, and a tenant that keeps much gives way."""

from types import SimpleNamespace

import pytest

from splitfuse.server.results.reuse.answers import CachedAnswer, CachedAnswers


def answer(num_bytes: int) -> CachedAnswer:
    return CachedAnswer(SimpleNamespace(prompt_token_ids=[]), [], num_bytes)  # type: ignore[arg-type]


def test_the_least_recently_used_answer_of_the_largest_tenant_goes() -> None:
    answers = CachedAnswers(max_answers=4, max_bytes=1000)
    for key in (b"1", b"2", b"3"):
        answers.add("much", key, answer(100))
    answers.add("little", b"1", answer(10))
    assert answers.find("much", b"1") is not None
    answers.add("little", b"2", answer(10))
    kept = {(tenant, key) for tenant in ("much", "little") for key in (b"1", b"2", b"3") if answers.find(tenant, key)}
    assert kept == {("much", b"1"), ("much", b"3"), ("little", b"1"), ("little", b"2")}
    assert (len(answers), answers.num_bytes) == (4, 220)


@pytest.mark.parametrize("size", [100, 30, 7])
def test_bytes_have_a_limit(size: int) -> None:
    answers = CachedAnswers(max_answers=1000, max_bytes=100)
    for number in range(30):
        answers.add(f"tenant {number % 3}", bytes([number]), answer(size))
    assert answers.num_bytes == 100 // size * size
    answers.add("one", b"large", answer(101))
    assert answers.find("one", b"large") is None
