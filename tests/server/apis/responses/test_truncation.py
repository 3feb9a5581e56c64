"""`truncation` auto leaves out the oldest messages of a conversation that does not fit."""

import pytest

LONG = [
    {"role": "user" if number % 2 == 0 else "assistant", "content": f"{number:02}" + "x" * 58} for number in range(21)
]
SYSTEM = {"role": "system", "content": "Be kind."}


@pytest.fixture
def prompts(served, monkeypatch):
    """Return the texts that the engine got."""
    got = []
    submit = served.engine.submit

    async def recorded(prompt, *args, **more):
        got.append(prompt["prompt"])
        return await submit(prompt, *args, **more)

    monkeypatch.setattr(served.engine, "submit", recorded)
    return got


async def ask(served, **fields):
    return await served.client.post("/v1/responses", json={"max_output_tokens": 50, **fields})


async def test_the_oldest_messages_are_left_out_until_it_fits(served, prompts):
    response = await ask(served, input=LONG, truncation="auto")
    assert response.status_code == 200, response.text
    assert response.json()["truncation"] == "auto"
    (prompt,) = prompts
    assert 512 - 2 * 70 < len(prompt) + 50 <= 512, "as many as fit, in pairs"
    assert prompt.startswith("<user>")
    assert LONG[-1]["content"] in prompt


async def test_instructions_and_a_system_message_stay(served, prompts):
    await ask(served, input=[SYSTEM, *LONG], truncation="auto")
    await ask(served, input=LONG, instructions="Be kind.", truncation="auto")
    assert prompts[0] == prompts[1]
    assert prompts[0].startswith("<system>Be kind.\n<user>")


async def test_what_fits_is_left_alone(served, prompts):
    await ask(served, input=LONG[:3], truncation="auto")
    await ask(served, input=LONG[:3], truncation="disabled")
    assert prompts[0] == prompts[1]


async def test_without_it_or_with_one_message_that_is_too_long_it_is_refused(served):
    for fields in (
        {"input": LONG},
        {"input": LONG, "truncation": "disabled"},
        {"input": "x" * 600, "truncation": "auto"},
    ):
        response = await ask(served, **fields)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
        assert error["param"] == "input"


async def test_a_conversation_goes_on_from_all_of_it(served, prompts):
    first = (await ask(served, input=LONG, truncation="auto")).json()
    again = await ask(served, input="And?", previous_response_id=first["id"], truncation="auto")
    assert again.status_code == 200
    assert prompts[1].endswith("<user>And?\n<assistant>")
    items = (await served.client.get(f"/v1/responses/{again.json()['id']}/input_items?limit=100")).json()["data"]
    assert len(items) == len(LONG) + 2


async def test_a_limit_that_fits_beside_no_text_leaves_out_no_more_than_none(served, prompts):
    for limit in (None, 32_000):
        assert (await ask(served, input=LONG, truncation="auto", max_output_tokens=limit)).status_code == 200
    assert prompts[0] == prompts[1]
