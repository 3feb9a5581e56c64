"""Facts of a tokenizer that stand in several files of a folder are read as transformers reads them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from splitfuse.engine.errors import ConfigError
from splitfuse.engine.language.text.tokenizer import Tokenizer

DEMO = Path(__file__).parents[3] / "engine/demo_model"
NAMED = ("bos_token", "eos_token", "pad_token")
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
TEXT = "a <|new|> b<|user|>c <|end|> d"
ADDED = {"content": "<|new|>", "special": True, "normalized": False, "lstrip": False, "rstrip": True}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # changes of tokenizer_config.json, and other files
    "map": ({}, {"special_tokens_map.json": {"bos_token": "<|endoftext|>", "eos_token": {"content": "<|end|>"}}}),
    "decoder": ({"added_tokens_decoder": {"2048": ADDED}}, {}),
    "decoder beats the map": (
        {"added_tokens_decoder": {"2048": ADDED}},
        {"special_tokens_map.json": {"eos_token": "<|new|>"}},
    ),
    "added_tokens": ({}, {"added_tokens.json": {"<|new|>": 2048}}),
    "extra list": ({"extra_special_tokens": ["<|new|>"]}, {}),
    "additional": ({"additional_special_tokens": ["<|user|>", "<|new|>"]}, {}),
    "named": ({"eos_token": "<|new|>"}, {}),
}


def folder_of(tmp_path: Path, config: dict[str, Any], files: dict[str, Any]) -> Path:
    folder = tmp_path / "m"
    shutil.copytree(DEMO, folder)
    path = folder / "tokenizer_config.json"
    own = {key: value for key, value in json.loads(path.read_text()).items() if key not in NAMED}
    path.write_text(json.dumps(own | config))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("case", CASES)
def test_facts_of_all_files_are_read_like_transformers_reads_them(case: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, *CASES[case])
    ours, theirs = Tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    ids = ours.encode(TEXT, add_special_tokens=False)
    assert ids == theirs.encode(TEXT, add_special_tokens=False)
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    messages = [{"role": "user", "content": "Hi"}]
    assert ours.render_chat(messages) == theirs.apply_chat_template(messages, tokenize=False)


@pytest.mark.parametrize(
    "config",
    [
        *({"added_tokens_decoder": added} for added in ({"x": ADDED}, {"5": "text"}, {"5": {"no": "content"}})),
        {"extra_special_tokens": 1.5},
    ],
)
def test_added_tokens_that_cannot_be_read_are_refused(config: dict[str, Any], tmp_path: Path) -> None:
    folder = folder_of(tmp_path, config, {})
    with pytest.raises(ConfigError, match="added tokens cannot be read"):
        Tokenizer(folder)
