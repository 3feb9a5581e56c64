"""A text's length bounds its number of tokens for any tokenizer; the tail of a text has the text's last tokens."""

import random
from collections.abc import Callable

import pytest
from tiny_models import byte_tokenizer
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from splitfuse.engine.config import DEMO_FOLDER
from splitfuse.engine.language.text.length_bound import LengthBound

QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PIECES = [
    *"aZé é߀ñ가각1234567890.,'’-—!?<>",
    *(" ", "  ", "\n", "\t", "\u00a0", "\u3000", "\r\n", " \n ", "'s", "'LL", "don't"),
] + [
    *(
        "the",
        "Once",
        " upon",
        " handkerchief",
        "<|user|>",
        "<|end",
        "ᾂ",
        "α\u0313\u0300\u0345",
        "각",
        "👩‍👩‍👧",
        "日本",
        "\x00",
    ),
    *("zq" * 40, " " * 30, "-" * 20, "0" * 17),
]


def demo() -> Tokenizer:
    return Tokenizer.from_file(str(DEMO_FOLDER / "tokenizer.json"))


def composing() -> Tokenizer:
    tokenizer = demo()
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(QWEN), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return tokenizer


def stripping() -> Tokenizer:
    """Tokenizer whose special tokens strip the whitespace around them, like Phi-3's."""
    tokenizer = demo()
    tokenizer.add_special_tokens([AddedToken("<|user|>", lstrip=True, rstrip=True)])
    return tokenizer


def sentencepiece() -> Tokenizer:
    """Tokenizer like Llama 2's: spaces are ▁, unknown characters are bytes, and a text is not split into words."""
    words = ["▁", "the", "▁the", "Once", "▁Once", "on", "up", "▁▁", "▁up"]
    vocab = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"theOncup", *words]
    ids = {token: number for number, token in enumerate(dict.fromkeys(vocab))}
    merges = [("t", "h"), ("▁", "▁")]
    ids["th"] = len(ids)
    tokenizer = Tokenizer(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return tokenizer


def words_only() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE({"<unk>": 0, "a": 1}, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


BOUNDED = [demo, byte_tokenizer, composing, stripping, sentencepiece, words_only]


def texts(seed: int) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(PIECES, k=rng.randrange(1, 60))) for _ in range(12)]


@pytest.mark.parametrize("make", BOUNDED)
@pytest.mark.parametrize("seed", range(3))
def test_no_text_has_fewer_tokens(make: Callable[[], Tokenizer], seed: int) -> None:
    tokenizer = make()
    bound = LengthBound.of(tokenizer)
    assert bound.max_chars is not None
    for text in [*texts(seed), "α\u0313\u0300\u0345" * 50, " \n" * 500 + "<|user|>" + "\t " * 500, "x" * 300]:
        assert len(tokenizer.encode(text, add_special_tokens=False).ids) >= bound.min_tokens(text), text


@pytest.mark.parametrize("make", BOUNDED)
def test_a_text_without_tricks_is_seen_to_be_long(make: Callable[[], Tokenizer]) -> None:
    assert LengthBound.of(make()).min_tokens("Once upon a time" * 1000) > 100


def test_the_longest_token_is_what_counts() -> None:
    assert LengthBound.of(demo()).max_chars == len("<|endoftext|>")
    assert LengthBound.of(demo()).min_tokens("x" * 14) == 2


def removing() -> Tokenizer:
    tokenizer = demo()
    tokenizer.normalizer = normalizers.Replace("z", "")
    return tokenizer


def removing_words() -> Tokenizer:
    tokenizer = demo()
    tokenizer.pre_tokenizer = pre_tokenizers.Split("z", behavior="removed")
    return tokenizer


def accents_off() -> Tokenizer:
    tokenizer = demo()
    tokenizer.normalizer = normalizers.StripAccents()
    return tokenizer


def word_level() -> Tokenizer:
    return Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))


def fusing() -> Tokenizer:
    return Tokenizer(models.BPE({"<unk>": 0, "a": 1}, [], unk_token="<unk>", fuse_unk=True))


def unigram() -> Tokenizer:
    return Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)], unk_id=0, byte_fallback=False))


def dropping() -> Tokenizer:
    return Tokenizer(models.BPE({"a": 0}, []))


@pytest.mark.parametrize("make", [removing, removing_words, accents_off, word_level, fusing, unigram, dropping])
def test_where_a_token_may_be_any_text_there_is_no_bound(make: Callable[[], Tokenizer]) -> None:
    tokenizer = make()
    assert len(tokenizer.encode("z\u0301" + "zz" * 5000).ids) >= LengthBound.of(tokenizer).min_tokens("zz" * 5000) == 0


@pytest.mark.parametrize("make", BOUNDED)
@pytest.mark.parametrize("seed", range(3))
def test_the_tail_has_the_last_tokens_of_the_whole(make: Callable[[], Tokenizer], seed: int) -> None:
    tokenizer = make()
    bound = LengthBound.of(tokenizer)
    num_cut = 0
    for text in texts(seed):
        long = text + "".join(reversed(texts(seed + 100))) + text
        tails = {num_tokens: bound.tail(long, num_tokens=num_tokens) for num_tokens in (1, 3, 20)}
        if set(tails.values()) == {long}:
            continue
        num_cut += 1
        token_ids = tokenizer.encode(long).ids
        for num_tokens, tail in tails.items():
            assert long.endswith(tail)
            assert tokenizer.encode(tail).ids[-num_tokens:] == token_ids[-num_tokens:]
    assert (num_cut > 0) == (make in (demo, byte_tokenizer, composing))


def test_an_added_token_with_a_space_may_stand_anywhere() -> None:
    tokenizer = demo()
    tokenizer.add_tokens(["one two"])
    text = "x" * 100 + " one two three" + "y" * 13
    assert LengthBound.of(tokenizer).tail(text, num_tokens=1) == text
