"""`suffix` of /v1/completions and llama.cpp's /infill: text between a prefix and a suffix."""

import pytest
from fake_engine import FakeTokenizer

from splitfuse.server.api.chat.fill_in_middle import FORMS, REPOSITORIES

MARKS = (256, 257, 258)
END = 259
REPOSITORY, FILE = 260, 261


@pytest.fixture(params=FORMS, ids=lambda form: form[0])
def filling(served, request):
    """Return a server whose tokenizer has the tokens of one form, and their end."""
    special = dict(zip((*request.param, "<|endoftext|>"), (*MARKS, END), strict=True))

    class Tokenizer(FakeTokenizer):
        def encode(self, text, *, add_special_tokens=True):
            return [special[text]] if text in special else super().encode(text)

    served.engine.tokenizer = Tokenizer()
    return served


@pytest.fixture
def prompts(served, monkeypatch):
    """Return the list of the token ids that reach the engine, with the tokens that end the answer."""
    prompts = []
    submit = served.engine.submit

    async def recorded(prompt, params, *args, **more):
        prompts.append((prompt, sorted(params.stop_token_ids)))
        return await submit(prompt, params, *args, **more)

    monkeypatch.setattr(served.engine, "submit", recorded)
    return prompts


def prompt_of(prefix, suffix, after=""):
    before, middle, end = MARKS
    return [before, *prefix.encode(), middle, *suffix.encode(), end, *after.encode()]


@pytest.mark.parametrize(
    ("path", "body", "after"),
    [
        ("/v1/completions", {"prompt": "ab", "suffix": "yz", "max_tokens": 3}, ""),
        ("/api/generate", {"prompt": "ab", "suffix": "yz", "options": {"num_predict": 3}, "stream": False}, ""),
        (
            "/infill",
            {"input_prefix": "ab", "input_suffix": "yz", "prompt": "c", "n_predict": 3, "input_extra": []},
            "c",
        ),
    ],
)
async def test_the_middle_is_asked_for(filling, path, body, after, prompts):
    response = await filling.client.post(path, json=body)
    assert response.status_code == 200, response.text
    assert prompts == [(prompt_of("ab", "yz", after), [*MARKS, END])]


EXTRA = [{"filename": "a.py", "text": "one", "time": 7}, {"text": "two"}, {"filename": "a.py", "text": "three"}]


@pytest.mark.parametrize("names", [(), *REPOSITORIES], ids=str)
async def test_other_texts_come_first(filling, names, prompts, monkeypatch):
    encode, ids = filling.engine.tokenizer.encode, dict(zip(names, (REPOSITORY, FILE), strict=False))
    monkeypatch.setattr(
        filling.engine.tokenizer, "encode", lambda text, **more: [ids[text]] if text in ids else encode(text, **more)
    )
    body = {"input_prefix": "ab", "input_suffix": "yz", "n_predict": 3, "input_extra": EXTRA}
    response = await filling.client.post("/infill", json=body)
    assert (response.status_code, response.headers["x-ignored-fields"]) == (200, "input_extra.time")
    before = (
        [REPOSITORY, *b"myproject\n", FILE, *b"a.py\none\n", FILE, *b"tmp\ntwo\n", FILE, *b"a.py\nthree\n"]
        + [FILE, *b"filename\n"]
        if names
        else [*b"onetwothree"]
    )
    assert prompts[0][0] == before + prompt_of("ab", "yz")


@pytest.mark.parametrize("extra", ["a", [1], [{"filename": "a"}], [{"text": 1}]])
async def test_other_texts_that_are_none(filling, extra):
    body = {"input_prefix": "ab", "input_suffix": "yz", "input_extra": extra}
    response = await filling.client.post("/infill", json=body)
    assert response.status_code == 400
    assert "input_extra" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": "ab", "suffix": "yz"}, "suffix"),
        ("/infill", {"input_prefix": "ab", "input_suffix": "yz"}, "input_suffix"),
    ],
)
async def test_a_model_without_the_tokens_refuses_and_names_them(served, path, body, param):
    error = (await served.client.post(path, json=body)).json()["error"]
    assert (error["param"], "<|fim_prefix|>" in error["message"]) == (param, True)


async def test_what_does_not_go_with_a_suffix(served):
    for fields, param in (({"echo": True}, "echo"), ({"prompt": [5]}, "suffix")):
        body = {"prompt": "ab", "suffix": "yz", **fields}
        assert (await served.client.post("/v1/completions", json=body)).json()["error"]["param"] == param
