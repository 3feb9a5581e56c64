"""What the log says of the form of calls."""

from typing import Any

import pytest

from splitfuse.engine.serving.prompt_reader import form_note


@pytest.mark.parametrize(
    ("form", "note"),
    [
        ({"calls": "hermes", "hidden": []}, None),
        (
            {"calls": None, "hidden": ["tools", "calls"]},
            "the chat template prints no tools and no calls: they become text",
        ),
        ({"error": "E"}, "E; requests with tools need --tool-call-parser NAME"),
    ],
)
def test_what_the_log_says_of_tools(form: dict[str, Any], note: str | None) -> None:
    assert form_note(form) == note
