"""Tokenizers from a GGUF's metadata give the ids of the tokenizer that the metadata was written from."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as FastTokenizer
from transformers import AutoTokenizer, GemmaTokenizer, GPT2Tokenizer, LlamaTokenizer, Qwen2Tokenizer

from splitfuse.engine.errors import ConfigError
from splitfuse.engine.formats.gguf.file import read_gguf
from splitfuse.engine.formats.gguf.token_types import end_ids
from splitfuse.engine.language.text.tokenizer import Tokenizer

ROOT = Path(__file__).parents[4]
TEXTS = [
    "Hello world! 123",
    "  many   spaces\n\n and\tlines\r\n  ",
    "I'll say we'RE here, they've 1234567 things; x==2 // $5 ~ [a|b] ^_^",
    "Café déjà vu, Å and Å, ﬁne “quotes” … 東京タワー 안녕 🙂👩‍👩‍👧",
    "def f(x):\n    return x**2  # CamelCase snake_case HTTPServer",
    "<|end|>no<|start|> special",
    "",
    " ",
]
SPECIAL = ["<|end|>", "<|start|>"]


def trained(pre_tokenizer: Any, normalizer: Any = None) -> FastTokenizer:
    """Return a trained byte-level BPE of 700 tokens."""
    tokenizer = FastTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([(ROOT / "README.md").read_text()] * 2 + TEXTS, trainer)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False)


def parts(tokenizer: FastTokenizer) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return vocabulary and merges."""
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def write(path: Path, vocab: dict[str, int], *, architecture: str = "llama", **values: Any) -> Path:
    """Write a GGUF that holds a vocabulary, with an embedding for each token."""
    writer = gguf.GGUFWriter(path, architecture)
    tokens = sorted(vocab, key=lambda token: vocab[token])
    control = {*SPECIAL, "<s>", "</s>", "<bos>", "<eos>", "<pad>"}
    kinds = [
        gguf.TokenType.CONTROL
        if token in control
        else gguf.TokenType.UNKNOWN
        if token == "<unk>"
        else gguf.TokenType.BYTE
        if token.startswith("<0x")
        else gguf.TokenType.NORMAL
        for token in tokens
    ]
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    for key, value in values.items():
        if key == "chat_template":
            writer.add_chat_template(value)
        else:
            getattr(writer, f"add_{key}")(value)
    writer.add_tensor("token_embd.weight", np.zeros((len(tokens), 4), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_byte_level(path: Path, tokenizer: FastTokenizer, **values: Any) -> Path:
    vocab, merges = parts(tokenizer)
    return write(
        path, vocab, tokenizer_model="gpt2", token_merges=[" ".join(merge) for merge in merges], eos_token_id=0,
        bos_token_id=1, **values,
    )  # fmt: skip


def assert_same(ours: Tokenizer, expected: Any, texts: list[str] = TEXTS) -> None:
    for text in texts:
        ids = ours.encode(text, add_special_tokens=False)
        assert ids == expected.encode(text, add_special_tokens=False), text
        assert ours.decode(ids, skip_special_tokens=False) == expected.decode(ids, skip_special_tokens=False)


def with_special(tokenizer: Any) -> Any:
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL})
    return tokenizer


def test_gpt_2(tmp_path: Path) -> None:
    tokenizer = trained(BYTE_LEVEL)
    vocab, merges = parts(tokenizer)
    path = write_byte_level(tmp_path / "m.gguf", tokenizer, tokenizer_pre="gpt-2")
    assert_same(Tokenizer(path), with_special(GPT2Tokenizer(vocab=vocab, merges=merges)))


def test_qwen2(tmp_path: Path) -> None:
    tokenizer = trained(BYTE_LEVEL, normalizers.NFC())
    vocab, merges = parts(tokenizer)
    path = write_byte_level(tmp_path / "m.gguf", tokenizer, architecture="qwen2", tokenizer_pre="qwen2")
    names = dict.fromkeys(("unk_token", "eos_token", "pad_token"), SPECIAL[0])
    assert_same(Tokenizer(path), with_special(Qwen2Tokenizer(vocab=vocab, merges=merges, **names)))


def test_smollm(tmp_path: Path) -> None:
    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BYTE_LEVEL])
    tokenizer = trained(digits)
    path = write_byte_level(tmp_path / "m.gguf", tokenizer, tokenizer_pre="smollm")

    class Expected:
        encode = staticmethod(lambda text, **options: tokenizer.encode(text, **options).ids)
        decode = staticmethod(tokenizer.decode)

    assert_same(Tokenizer(path), Expected)


@pytest.mark.parametrize("pre", ["dbrx", "smaug-bpe", "gpt-4o", "deepseek-r1-qwen", "llama-bpe", "tekken"])
def test_what_transformers_splits_as_llama_cpp_does(pre: str, tmp_path: Path) -> None:
    write_byte_level(tmp_path / "m.gguf", trained(BYTE_LEVEL), tokenizer_pre=pre)
    expected = AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf")
    ours = Tokenizer(tmp_path / "m.gguf")
    assert_same(ours, expected, [text for text in TEXTS if text.strip()])


def test_the_default_splits_as_llama_cpp_does(tmp_path: Path) -> None:
    """Compare splits that no other reader has: punctuation first, then GPT-2's words, numbers by three digits."""
    ours = Tokenizer(write_byte_level(tmp_path / "m.gguf", trained(BYTE_LEVEL)))
    split = ours._fast.pre_tokenizer.pre_tokenize_str  # type: ignore[union-attr]
    words = [word for word, _ in split("a+b=c, it's 1234567x")]
    assert words == ["a", "+", "b", "=", "c", ",", "Ġit", "'", "s", "Ġ", "123", "456", "7", "x"]


def sentencepiece(special: list[str]) -> tuple[FastTokenizer, dict[str, int], list[tuple[str, str]]]:
    """Return a trained BPE over ▁, its vocabulary with bytes, and its merges."""
    tokenizer = FastTokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=1200, special_tokens=tokens, show_progress=False, max_token_length=12)
    tokenizer.train_from_iterator([line for line in (ROOT / "README.md").read_text().splitlines() if line], trainer)
    vocab, merges = parts(tokenizer)
    return tokenizer, vocab, merges


def test_sentencepiece_needs_no_merges(tmp_path: Path) -> None:
    _, vocab, merges = sentencepiece(["<unk>", "<s>", "</s>"])
    ids = {merge[0] + merge[1]: rank for rank, merge in enumerate(merges)}
    scores = [float(-ids.get(token, 0)) for token in sorted(vocab, key=lambda token: vocab[token])]
    path = write(
        tmp_path / "m.gguf", vocab, tokenizer_model="llama", token_scores=scores, bos_token_id=1, eos_token_id=2,
        unk_token_id=0,
    )  # fmt: skip
    ours, expected = Tokenizer(path), LlamaTokenizer(vocab=vocab, merges=merges)
    # LlamaTokenizer now adds a space at the beginning of a text only if there is none.
    assert_same(ours, expected, [text for text in TEXTS if text == text.lstrip() and text])
    assert ours.encode("Hello")[0] == 1  # bos token, by default
    assert ours.decode(ours.encode("  two")) == "  two"


def test_gemma(tmp_path: Path) -> None:
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    _, vocab, merges = sentencepiece([*special, "▁▁", "▁▁▁"])
    # Like Gemma's files: tokens of several spaces have spaces, and scores carry no order of merges.
    written = {
        token.replace("▁", " ") if set(token) == {"▁"} and len(token) > 1 else token: i for token, i in vocab.items()
    }
    path = write(
        tmp_path / "m.gguf", written, architecture="gemma2", tokenizer_model="llama",
        token_scores=[-1000.0] * len(vocab), bos_token_id=2, eos_token_id=1, unk_token_id=3,
        add_space_prefix=False, add_bos_token=True,
    )  # fmt: skip
    expected = GemmaTokenizer(vocab=vocab, merges=[("▁", "▁"), ("▁▁", "▁"), *merges])
    assert_same(Tokenizer(path), expected, [text for text in TEXTS if "   " not in text])


def test_gemma_4_lists_its_merges(tmp_path: Path) -> None:
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    _, vocab, merges = sentencepiece(special)
    path = write(
        tmp_path / "m.gguf", vocab, architecture="gemma4", tokenizer_model="gemma4",
        token_merges=[" ".join(merge) for merge in merges], bos_token_id=2, eos_token_id=1, unk_token_id=3,
        add_space_prefix=False, add_bos_token=True,
    )  # fmt: skip
    assert_same(Tokenizer(path), GemmaTokenizer(vocab=vocab, merges=merges))


def test_flags_and_templates_are_the_files_own(tmp_path: Path) -> None:
    tokenizer = trained(BYTE_LEVEL)
    values = {"tokenizer_pre": "gpt-2", "chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"}
    plain = Tokenizer(write_byte_level(tmp_path / "plain.gguf", tokenizer, **values))
    assert plain.render_chat([{"role": "user", "content": "hi"}]) == "<|start|>hi<|end|>"
    ids = plain.encode("hi")
    flags = {"add_bos_token": True, "add_eos_token": True}
    both = Tokenizer(write_byte_level(tmp_path / "both.gguf", tokenizer, **values, **flags))
    assert both.encode("hi") == [1, *ids, 0]
    assert both.decode(both.encode("hi")) == "hi"
    assert not Tokenizer(write_byte_level(tmp_path / "none.gguf", tokenizer, tokenizer_pre="gpt-2")).has_chat_template


@pytest.mark.parametrize("types", ["normal", "missing"])
def test_a_token_that_looks_special_is_whole_whatever_its_type(types: str, tmp_path: Path) -> None:
    """Read files of converters that type <|im_end|> as normal text: it is one token, and ends an answer."""
    tokenizer = trained(BYTE_LEVEL)
    vocab, merges = parts(tokenizer)
    vocab |= {"<|im_start|>": 700, "<|im_end|>": 701, "<|no end": 702}
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(sorted(vocab, key=lambda token: vocab[token]))
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_eos_token_id(0)
    if types == "normal":
        writer.add_token_types([gguf.TokenType.NORMAL] * len(vocab))
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.close):
        write()
    ours, file = Tokenizer(tmp_path / "m.gguf"), read_gguf(tmp_path / "m.gguf")
    ids = ours.encode("<|im_start|>a<|im_end|><|no end")
    assert (ids[0], ids[2]) == (700, 701)
    assert 702 not in ids
    assert end_ids(file) == [0, 701]


def test_bert_s_word_pieces(tmp_path: Path) -> None:
    """The file spells the pieces of vocab.txt in llama.cpp's way: ▁ before the first, nothing before the others."""
    texts = ["Hello Wörld!", "unbelievably  good, naïve 東京 café's", "[MASK] x"]
    fast = FastTokenizer(models.WordPiece(unk_token="[UNK]"))
    fast.normalizer, fast.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    fast.train_from_iterator([(ROOT / "README.md").read_text(), *texts], trainer)
    fast.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    vocab = {
        token if token in special else token[2:] if token.startswith("##") else f"▁{token}": token_id
        for token, token_id in fast.get_vocab().items()
    }
    path = write(
        tmp_path / "m.gguf", vocab, architecture="bert", tokenizer_model="bert", unk_token_id=1, bos_token_id=2,
        sep_token_id=3, pad_token_id=0, mask_token_id=4,
    )  # fmt: skip
    ours = Tokenizer(path)
    for text in texts:
        assert ours.encode(text) == fast.encode(text).ids, text
    pair = ours.encode_batch([("a good", "text")])[0]
    assert (pair.ids, pair.type_ids) == ((expected := fast.encode("a good", "text")).ids, expected.type_ids)


def test_sentencepiece_s_unigrams(tmp_path: Path) -> None:
    fast = FastTokenizer(models.Unigram())
    fast.normalizer = normalizers.Replace(Regex(" {2,}"), " ")
    fast.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=250, special_tokens=special, unk_token="<unk>", show_progress=False)
    fast.train_from_iterator((ROOT / "README.md").read_text().splitlines(), trainer)
    pairs = json.loads(fast.to_str())["model"]["vocab"]
    path = write(
        tmp_path / "m.gguf", {token: index for index, (token, _) in enumerate(pairs)}, architecture="bert",
        tokenizer_model="t5", token_scores=[score for _, score in pairs], bos_token_id=0, eos_token_id=2,
        unk_token_id=3, add_bos_token=True, add_eos_token=True,
    )  # fmt: skip
    ours = Tokenizer(path)
    for text in ["  a model  serves requests ", "Ünïcode 東京", "", " "]:
        assert ours.encode(text) == [0, *fast.encode(text.strip(), add_special_tokens=False).ids, 2]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tokenizer_model": "rwkv"}, "kind 'rwkv' is not known; .*--tokenizer FOLDER; known: gpt2, llama"),
        ({"tokenizer_model": "gpt2", "tokenizer_pre": "no"}, r"pre 'no' is not known; .*--tokenizer FOLDER; .*smollm"),
        ({"tokenizer_model": "gpt2"}, r"tokenizer\.ggml\.merges is missing"),
        ({"tokenizer_model": "gpt2", "token_merges": ["a nothing"]}, "no tokenizer that can be built"),
        ({"tokenizer_model": "gpt2", "token_merges": ["ab"]}, "no tokenizer that can be built"),
        ({"tokenizer_model": "llama", "bos_token_id": 99}, "bos_token_id is beyond the 2 tokens"),
        ({"tokenizer_model": "llama", "token_scores": ["x", "y"]}, "no tokenizer that can be built"),
    ],
)
def test_metadata_that_makes_no_tokenizer_is_refused(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"a": 0, "b": 1}, **values)
    with pytest.raises(ConfigError, match=message):
        Tokenizer(path)
