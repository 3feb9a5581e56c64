"""Files of every model that a popular local server offers open and generate: header and tokenizer as published."""

import csv
from pathlib import Path

import pytest
from gguf_files import write_gguf
from published import needs_published, published
from tables import table

from splitfuse.engine import LLM, SamplingParams
from splitfuse.engine.errors import ConfigError

TABLE = published("conformance/models.tsv")
ROWS = list(csv.DictReader(TABLE.read_text().splitlines(), delimiter="\t")) if TABLE.exists() else []
# Architecture -> the tiny model whose layers it has, and its word split where the table does not know it.
TINY = table(__file__, "tiny")
# Rows that do not open, and why.
NOT_SERVED = {
    "Muse-Glimmer-30B-GGUF": "an architecture that no library here has",
    "nomic-embed-text-v2-moe-GGUF": "an encoder with a mixture of experts",
    "jina-reranker-v1-tiny-en-GGUF": "an encoder with ALiBi",
}
ENCODERS = {"bert", "nomic-bert"}  # compared in test_pooling.py
FORMS = sorted(
    {
        (row["architecture"], row["word_split"])
        for row in ROWS
        if row["name"] not in NOT_SERVED and row["architecture"] not in ENCODERS
    }
)


def test_eighty_of_ninety_open() -> None:
    assert len(NOT_SERVED) <= 10
    assert len(FORMS) == len({architecture for architecture, _ in FORMS}) + 2 * bool(ROWS)  # llama and qwen3 have two


@needs_published
@pytest.mark.parametrize(("architecture", "split"), FORMS)
def test_a_file_of_each_form_opens_and_generates(architecture: str, split: str, tmp_path: Path) -> None:
    tiny, known = TINY[architecture]
    write_gguf(tmp_path / "m.gguf", tiny, named=architecture, split=known or split)
    output = LLM(str(tmp_path / "m.gguf"), dtype="float32").generate("th x1", SamplingParams(max_tokens=4))[0]
    assert output.outputs[0].token_ids


@pytest.mark.parametrize("architecture", ["muse-glimmer", "nomic-bert-moe", "jina-bert-v2"])
def test_an_architecture_that_is_not_served_is_refused_by_name(architecture: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "qwen3", named=architecture)
    with pytest.raises(ConfigError, match=rf"architecture '{architecture}' is not known"):
        LLM(str(tmp_path / "m.gguf"))
