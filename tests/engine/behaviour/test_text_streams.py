"""Joined deltas are the full decode, for prompts in ten scripts and emoji and any ids that a model may sample.

3,000 cases per tokenizer; SPLITFUSE_TEST_TEXTS=50000 runs that many.
"""

import os
import random
from pathlib import Path

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as FastTokenizer

from splitfuse.engine.config import DEMO_FOLDER
from splitfuse.engine.language.text.detokenizer import TextStream
from splitfuse.engine.language.text.tokenizer import Tokenizer

NUM_STREAMS = int(os.environ.get("SPLITFUSE_TEST_TEXTS", "3000"))
TEXTS = {
    "Latin": "Voilà un café très fort, naïve Übergröße; ñandú, šťastný, don't stop!",
    "Cyrillic": "Привет, как дела? Съешь же ещё этих мягких французских булок.",
    "Greek": "Καλημέρα κόσμε, πώς είσαι σήμερα;",
    "Hebrew": "שלום עולם, מה שלומך היום?",
    "Arabic": "مرحبا بالعالم، كيف حالك اليوم؟",
    "Devanagari": "नमस्ते दुनिया, आप कैसे हैं?",
    "Chinese": "你好，世界。今天天气怎么样？",
    "Japanese": "こんにちは世界、カタカナもひらがなも。",
    "Korean": "안녕하세요 세계, 오늘 날씨가 어때요?",
    "Thai": "สวัสดีชาวโลก วันนี้เป็นอย่างไรบ้าง",
    "emoji": "👩‍👩‍👧‍👦 🇩🇪🇫🇷 👍🏽 ❤️ 🏴‍☠️ ☕ 😀😃",
    "code": "def f(x):\n\treturn {'a': [1, 2], \"b\": x}  # ok\r\n\n",
}
BEYOND = 40  # ids of logits beyond the tokenizer's


def _byte_level() -> FastTokenizer:
    """Return a tokenizer like GPT-2's and Llama 3's: every byte has a letter, and letters are merged."""
    fast = FastTokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    fast.train_from_iterator(TEXTS.values(), trainer)
    return fast


def _byte_fallback() -> FastTokenizer:
    """Return a tokenizer like Llama 2's: words begin with "▁", <0xNN> for other bytes, a stripped first space."""
    known = ["Latin", "Cyrillic", "Chinese", "code"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trained = FastTokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(vocab_size=400, show_progress=False)
    trained.train_from_iterator((TEXTS[name] for name in known), trainer)
    pieces = [piece for piece in trained.get_vocab() if piece not in bytes_]
    vocab = {piece: i for i, piece in enumerate(["<unk>", "<s>", "</s>", *bytes_, "▁", *sorted({*pieces} - {"▁"})])}
    fast = FastTokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    fast.add_special_tokens(["<unk>", "<s>", "</s>"])
    fast.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    fast.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(content=" ", left=1)]
    )
    return fast


def _metaspace() -> FastTokenizer:
    """Return a tokenizer like T5's or Mistral's: Metaspace handles spaces; unknown characters have no bytes."""
    fast = FastTokenizer(models.BPE(unk_token="<unk>"))
    fast.pre_tokenizer = pre_tokenizers.Metaspace()
    fast.decoder = decoders.Metaspace()
    fast.train_from_iterator(
        TEXTS.values(), trainers.BpeTrainer(vocab_size=600, special_tokens=["<unk>"], show_progress=False)
    )
    return fast


MADE = {"byte-level": _byte_level, "byte-fallback": _byte_fallback, "metaspace": _metaspace}


@pytest.fixture(scope="module", params=["demo", *MADE])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    if request.param == "demo":
        return Tokenizer(DEMO_FOLDER)
    folder: Path = tmp_path_factory.mktemp(request.param)
    fast = MADE[request.param]()
    fast.add_special_tokens(["<|end|>"])
    fast.add_tokens([AddedToken("<tool_call>"), AddedToken("<|pad|>", lstrip=True)])
    fast.save(str(folder / "tokenizer.json"))
    return Tokenizer(folder)


def random_stream(rng: random.Random, tokenizer: Tokenizer) -> list[int]:
    """Return a mixture of ids of text cut anywhere, random ids and random bytes."""
    ids: list[int] = []
    bytes_ = sorted(tokenizer.byte_ids)
    for _ in range(rng.randint(1, 4)):
        text = rng.choice(list(TEXTS.values()))
        spelled = tokenizer.encode(text, add_special_tokens=False)
        start = rng.randrange(len(spelled))
        match rng.randrange(4):
            case 0:
                ids += spelled[start : start + rng.randint(1, 12)]
            case 1:
                ids += [rng.randrange(tokenizer.vocab_size + BEYOND) for _ in range(rng.randint(1, 8))]
            case 2 if bytes_:
                ids += [rng.choice(bytes_) for _ in range(rng.randint(1, 8))]
            case _:
                mixed = spelled[start : start + rng.randint(2, 12)]
                mixed[rng.randrange(len(mixed))] = rng.randrange(tokenizer.vocab_size + BEYOND)
                ids += mixed
    return ids


def full_text(tokenizer: Tokenizer, prompt: list[int], ids: list[int], *, skip: bool) -> str:
    """Return the text that the ids add to the prompt's.

    A prompt that ends in byte tokens is text already, and later ids cannot change it, so they are decoded alone.
    """
    before = tokenizer.decode(prompt, skip_special_tokens=skip)
    whole = tokenizer.decode(prompt + ids, skip_special_tokens=skip)
    return whole[len(before) :] if whole.startswith(before) else tokenizer.decode(ids, skip_special_tokens=skip)


def test_joined_deltas_are_the_full_decode(tokenizer: Tokenizer) -> None:
    rng = random.Random(0)
    prompts = [tokenizer.encode(text) for text in TEXTS.values()]
    num_held = 0
    for number in range(NUM_STREAMS):
        prompt, ids = prompts[number % len(prompts)], random_stream(rng, tokenizer)
        skip = rng.random() < 0.7
        stream = TextStream(tokenizer, prompt, skip_special_tokens=skip)
        deltas = [stream.push(token, last=False) for token in ids[:-1]]
        deltas.append(stream.push(ids[-1], last=True) if rng.random() < 0.9 else stream.push(ids[-1], last=False))
        deltas.append(stream.push(None, last=True))
        assert "".join(deltas) == full_text(tokenizer, prompt, ids, skip=skip), (number, prompt, ids, deltas)
        num_held += sum(not delta for delta in deltas[:-1])
    assert num_held, "nothing was ever held back, so nothing was tested"


def test_text_of_every_script_comes_without_half_characters(tokenizer: Tokenizer) -> None:
    for text in TEXTS.values():
        ids = tokenizer.encode(text, add_special_tokens=False)
        whole = tokenizer.decode(ids)
        for start in range(1, len(ids), 3):
            stream = TextStream(tokenizer, ids[:start])
            deltas = [stream.push(token, last=False) for token in ids[start:]] + [stream.push(None, last=True)]
            if "\ufffd" not in tokenizer.decode(ids[:start]):
                assert not any("\ufffd" in delta for delta in deltas)
                assert "".join(deltas) == full_text(tokenizer, ids[:start], ids[start:], skip=True)
            assert whole.endswith("".join(deltas))


def test_a_long_run_of_bytes_is_let_go_at_a_character(tmp_path: Path) -> None:
    _byte_fallback().save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path)
    ids = tokenizer.encode(TEXTS["Thai"].replace(" ", "") * 20, add_special_tokens=False)
    assert len(set(ids) - tokenizer.byte_ids) <= 1
    stream = TextStream(tokenizer, [1])
    text = ""
    num_silent = 0
    for token in ids:
        delta = stream.push(token, last=False)
        num_silent = 0 if delta else num_silent + 1
        assert num_silent < 132
        text += delta
    assert "\ufffd" not in text
    assert text + stream.push(None, last=True) == tokenizer.decode(ids)
    assert len(text) > 400
    for token in [259, *[3 + 0xFF] * 300]:  # one token, then bytes that are no text, all held until the end
        stream.push(token, last=False)
    assert stream.push(None, last=True) == "\ufffd" * 300
