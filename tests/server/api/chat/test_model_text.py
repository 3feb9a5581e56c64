"""num_reasoning_tokens counts an answer's own tokens, so it does not depend on which of them came together."""

from types import SimpleNamespace

import pytest

from splitfuse.server.api.chat.answer_format import AnswerFormat
from splitfuse.server.api.chat.model_text import ShownToken, num_reasoning_tokens

PIECES = [b"<think>", b"A caf", b"\xc3", b"\xa9.", b"</thi", b"nk>", b"Yes.", b" No."]


@pytest.mark.parametrize(("is_open", "expected"), [(False, 5), (True, 5)])
def test_tokens_count_up_to_the_one_that_ends_the_reasoning(is_open: bool, expected: int) -> None:
    answer = AnswerFormat(reasoning="think", is_open=is_open)
    outputs = [SimpleNamespace(token_ids=[*range(is_open, len(PIECES))]), SimpleNamespace(token_ids=[6, 7])]
    count = num_reasoning_tokens(
        SimpleNamespace(outputs=outputs),  # type: ignore[arg-type]
        answer,
        lambda token_id: ShownToken("", PIECES[token_id]),
    )
    assert count == expected - is_open + 2 * is_open


def test_an_answer_without_reasoning_is_not_read() -> None:
    job = SimpleNamespace(outputs=[SimpleNamespace(token_ids=[0, 1])])
    assert num_reasoning_tokens(job, AnswerFormat(), lambda token_id: pytest.fail("read")) == 0  # type: ignore[arg-type]
