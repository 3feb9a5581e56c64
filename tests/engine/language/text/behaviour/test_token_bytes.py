"""Bytes of single tokens join to the text, where their texts cannot."""

import random
from pathlib import Path

from splitfuse import engine
from splitfuse.engine.language.text.tokenizer import Tokenizer, token_bytes

DEMO = Path(engine.__file__).parent / "demo_model"
PIECES = ["😀", "👩‍👩‍👧", "🇩🇪", "🏳️‍🌈", "日本", " é", "a", " word", "\n"]


def test_the_bytes_of_200_strings_of_emoji_join_to_the_text():
    tokenizer = Tokenizer(DEMO)
    rng = random.Random(1)
    num_broken = 0
    for _ in range(200):
        text = "".join(rng.choices(PIECES, k=rng.randint(1, 12)))
        ids = tokenizer.encode(text, add_special_tokens=False)
        shown = [tokenizer.decode([token_id], skip_special_tokens=False) for token_id in ids]
        num_broken += sum("\N{REPLACEMENT CHARACTER}" in piece for piece in shown)
        raw = b"".join(token_bytes(tokenizer, token_id, piece) for token_id, piece in zip(ids, shown, strict=True))
        assert raw.decode() == text
    assert num_broken > 200
