"""Text comes out complete, and stop strings are found at any place. test_text_streams.py has the random streams."""

import random

import pytest
import tokenizers
from tiny_models import VOCAB_SIZE, byte_tokenizer

from splitfuse.engine.language.text.detokenizer import ByteDecoder, IncrementalDecoder, TextStream
from splitfuse.engine.language.text.tokenizer import Tokenizer

BROKEN = "\ufffd"
SCRIPTS = "Hello Привет γειά שלום مرحبا नमस्ते 你好 こんにちは 안녕 สวัสดี 👩‍👩‍👧‍👦🇩🇪é"


class Plain(Tokenizer):
    def __init__(self, fast: tokenizers.Tokenizer) -> None:
        self._fast = fast


def stream_all(tokenizer: Tokenizer, prompt: list[int], ids: list[int]) -> list[str]:
    stream = TextStream(tokenizer, prompt)
    return [stream.push(token, last=i == len(ids) - 1) for i, token in enumerate(ids)]


def test_long_runs_of_broken_bytes_come_out_in_time() -> None:
    fast = byte_tokenizer()
    rng = random.Random(5)
    tokenizer = Plain(fast)
    lead, tail = (fast.encode("é").ids[i] for i in (0, 1))
    for choices in ([tail], [lead], [lead, tail], fast.encode("é你👩x").ids):
        ids = [rng.choice(choices) for _ in range(300)]
        decoder = IncrementalDecoder(tokenizer, [20], skip_special_tokens=True)
        out = ""
        for i, token in enumerate(ids):
            out += decoder.push(token, last=i == len(ids) - 1)
            assert len(decoder._pending) <= 20
        assert out == tokenizer.decode(ids)


def test_a_prompt_that_ends_within_a_character_is_completed() -> None:
    fast = byte_tokenizer()
    ids = fast.encode("a世b").ids
    assert "".join(stream_all(Plain(fast), ids[:3], ids[3:])) == "世b"


def test_tokens_without_text_cost_nothing_later() -> None:
    fast = byte_tokenizer()
    decoder = IncrementalDecoder(Plain(fast), [20], skip_special_tokens=True)
    for _ in range(500):
        assert decoder.push(3, last=False) == ""
    assert len(decoder._context) + len(decoder._pending) < 10
    assert decoder.push(25, last=True) == fast.decode([25])


@pytest.mark.parametrize("skip_special_tokens", [False, True])
def test_bytes_joined_are_the_text_that_the_tokenizer_decodes(skip_special_tokens: bool) -> None:
    fast = byte_tokenizer()
    fast.add_special_tokens([tokenizers.AddedToken("<|end of text|>", special=True)])
    fast.add_tokens([tokenizers.AddedToken("two words é", special=False)])
    tokenizer = Plain(fast)
    assert tokenizer.is_byte_level
    added = [fast.token_to_id("<|end of text|>"), fast.token_to_id("two words é"), 10**6]
    rng = random.Random(7)
    for _ in range(2000):
        ids = [rng.choice([*fast.encode(SCRIPTS).ids, *added]) for _ in range(rng.randint(1, 40))]
        cut = rng.randint(0, len(ids) - 1)
        decoder = ByteDecoder(tokenizer, ids[:cut], skip_special_tokens=skip_special_tokens)
        text = "".join(decoder.push(token, last=i == len(ids) - 1) for i, token in enumerate(ids[cut:], cut))
        before = tokenizer.decode(ids[:cut], skip_special_tokens=skip_special_tokens)
        whole = tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        # The output may complete a character that the prompt began.
        assert whole in (before + text, before.removesuffix(BROKEN) + text)


def test_scripts_and_emoji_never_show_half_a_character() -> None:
    fast = byte_tokenizer()
    prompt = fast.encode("x").ids
    ids = fast.encode(SCRIPTS).ids
    assert max(ids) < VOCAB_SIZE
    deltas = stream_all(Plain(fast), prompt, ids)
    assert "".join(deltas) == SCRIPTS
    assert not any("\ufffd" in delta for delta in deltas)


@pytest.mark.parametrize("include", [False, True])
def test_stop_strings_across_token_borders(include: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("stop")
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    tokenizer = Tokenizer(folder)
    rng = random.Random(1)
    for _ in range(500):
        text = "".join(rng.choice("abcé") for _ in range(30))
        stops = ["".join(rng.choice("abcé") for _ in range(rng.randint(2, 5))) for _ in range(3)]
        ends = {stop: text.find(stop) for stop in stops if stop in text}
        stream = TextStream(tokenizer, [20], stop=stops, include_stop=include)
        out = ""
        ids = tokenizer.encode(text)
        for i, token in enumerate(ids):
            out += stream.push(token, last=i == len(ids) - 1)
            if stream.stopped_by:
                break
            assert not any(stop in out for stop in stops)
        if not ends:
            assert (out, stream.stopped_by) == (text, None)
            continue
        # The first stop string to be complete ends the text.
        stopped = stream.stopped_by
        assert stopped is not None
        first_end = min(position + len(stop) for stop, position in ends.items())
        assert ends[stopped] + len(stopped) == first_end
        assert out == text[: ends[stopped] + (len(stopped) if include else 0)]


def test_what_only_looked_like_a_stop_string_comes_out() -> None:
    fast = byte_tokenizer()
    stream = TextStream(Plain(fast), [20], stop=["abcd"])
    ids = fast.encode("xabcabce").ids
    deltas = [stream.push(token, last=False) for token in ids]
    assert deltas == ["x", "", "", "", "abc", "", "", "abce"]
