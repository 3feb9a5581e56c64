"""Hostile templates cost their own request one second and limited memory; other requests are rendered as usual."""

import json
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from shared_cores import CpuWait

from splitfuse.engine.errors import ConfigError, InvalidRequestError, UnavailableError
from splitfuse.engine.language.chat import renderer as module
from splitfuse.engine.language.chat.renderer import Renderer, check_compiles
from splitfuse.engine.language.chat.template import ChatTemplate
from splitfuse.engine.language.workers import worker_process
from splitfuse.engine.language.workers.input_threads import LONG_CHARS

MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": 'Hi "é👩‍👩‍👧\n'}]
# The first message decides: the template is hostile to one conversation, but not to the next.
HOSTILE = "{% if messages[0].content == 'evil' %}EVIL{% endif %}{{ messages[0].content }}"
TOO_SLOW = [
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{{ 7 ** (9 ** 9) }}",
]
TOO_LARGE = [
    "{{ 'x' * 10 ** 10 }}",
    "{{ 'x' | center(10000000000) }}",
    "{% set n = namespace(x='x') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
    "{{ '%2000000000d' % 1 }}",
    "{{ 'x' * 3000000 }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
]


def as_json(messages: list[dict[str, Any]], **options: Any) -> str:
    return json.dumps({"messages": messages, **options})


def renderer(source: str) -> Renderer:
    return Renderer(ChatTemplate(source, special_tokens={"eos_token": "<eos>"}))


def conversation(text: str, **options: Any) -> str:
    return as_json([{"role": "user", "content": text}], **options)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("source", [*TOO_SLOW, *TOO_LARGE])
def test_a_hostile_template_is_refused_and_the_next_conversation_rendered(source: str) -> None:
    own = renderer(HOSTILE.replace("EVIL", source))
    assert own.render(conversation("good")) == "good"
    start = time.process_time()
    with pytest.raises(InvalidRequestError, match="the chat template") as info:
        own.render(conversation("evil"))
    assert time.process_time() - start < 0.5, "nothing of it is done here"
    assert info.value.param == "messages"
    assert ("it takes more than 1 s" in str(info.value)) == (source in TOO_SLOW)
    assert len(str(info.value)) < 500
    assert own.render(conversation("good")) == "good"


def test_it_renders_and_refuses_as_the_template_does() -> None:
    source = (
        "{{ eos_token }}{{ messages | tojson }}{{ tools | tojson }}{{ add_generation_prompt }}{{ mood }}"
        "{% if not tools %}{{ raise_exception('no tools') }}{% endif %}"
    )
    template = ChatTemplate(source, special_tokens={"eos_token": "<eos>"}, tool_source=source + "!")
    own = Renderer(template)
    options: dict[str, Any] = {"tools": [{"a": 1.5}], "add_generation_prompt": False, "variables": {"mood": "gay"}}
    assert own.render(as_json(MESSAGES, **options)) == template.render(MESSAGES, **options)
    for render in (lambda: own.render(as_json(MESSAGES)), lambda: template.render(MESSAGES)):
        with pytest.raises(InvalidRequestError, match=r"^the chat template refuses this conversation: no tools$"):
            render()
    with pytest.raises(InvalidRequestError) as info:
        own.render(as_json([{"role": "user"}], continue_final_message=True))
    assert info.value.param == "continue_final_message"


def test_short_conversations_wait_for_no_long_one() -> None:
    own = renderer(
        "{% if messages[0].content | length > 20000 %}{% for i in range(99999) %}{% for j in range(99999) %}"
        "{% endfor %}{% endfor %}{% endif %}{{ messages[0].content }}"
    )
    assert own.render(conversation("x")) == "x"
    with ThreadPoolExecutor(1) as threads:
        long = threads.submit(own.render, conversation("x" * (LONG_CHARS + 4000)))
        assert own.render(conversation("y")) == "y"
        assert not long.done()
        with pytest.raises(InvalidRequestError):
            long.result()


@pytest.mark.parametrize("end", [lambda process: process.kill(), lambda process: os.kill(process.pid, signal.SIGTERM)])
def test_a_process_that_was_killed_is_replaced(end: Callable[[Any], None]) -> None:
    own = renderer("{{ messages[0].content }}")
    assert own.render(conversation("x")) == "x"
    current = own._short._process.current
    assert current is not None
    end(current.process)
    assert own.render(conversation("y")) == "y"


def test_a_limit_met_after_another_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    own, ends = renderer(""), [-signal.SIGKILL, -signal.SIGPROF]

    def end(conversation: str) -> Any:
        raise worker_process.WorkerEndedError(ends.pop(0))

    monkeypatch.setattr(own._short._process, "ask", end)
    with pytest.raises(InvalidRequestError, match="it takes more than 1 s"):
        own.render(conversation("x"))


def test_a_process_without_processor_time_is_no_fault_of_the_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    own = renderer("{{ messages[0].content }}")
    monkeypatch.setattr(worker_process, "_START_S", 0.0)
    with pytest.raises(UnavailableError, match="the machine is too busy"):
        own.render(conversation("x"))
    monkeypatch.undo()
    assert own.render(conversation("y")) == "y"


def recipe(source: str) -> dict[str, Any]:
    return {"source": source, "special_tokens": {}, "tool_source": None}


def test_a_template_that_compiles_passes_and_one_that_is_wrong_is_reported_elsewhere() -> None:
    check_compiles(recipe("{{ messages }}"))
    check_compiles(recipe("{% if %}"))


def test_a_template_that_compiles_too_slowly_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMPILE_LIMIT_S", 0.0)
    monkeypatch.setattr(module, "_SLACK_S", 0.3)
    start = time.monotonic()
    with CpuWait() as wait:
        with pytest.raises(ConfigError, match=r"of 700000 characters does not compile .* --chat-template"):
            check_compiles(recipe("{{ a }}" * 100_000))
        assert time.monotonic() - start < 15 * wait.factor, "not the slack that it has outside tests"


def test_the_process_limits_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    # The limit is the program's own: this process would wait for it.
    monkeypatch.setattr(module, "_SLACK_S", 600.0)
    with pytest.raises(ConfigError, match="does not compile within 5 s"):
        check_compiles(recipe("{{ a }}" * 100_000))
