"""`splitfuse embed` over a file of lines."""

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_encoders import save_pooled

from splitfuse.engine import LLM
from splitfuse.engine.errors import ConfigError
from splitfuse.server.cli import main
from splitfuse.server.commands.terminal.embedding import read_lines


def run(*arguments: object) -> None:
    assert main(["embed", *map(str, arguments)]) == 0


def test_lines_become_json_lines_or_a_matrix(tmp_path: Path) -> None:
    model = tmp_path / "model"
    save_pooled("bert", model)
    (tmp_path / "in.txt").write_text("rain\nbread\n")
    flags = (model, "-i", tmp_path / "in.txt", "--device", "cpu", "--dtype", "float32")
    run(*flags, "-o", tmp_path / "out.jsonl")
    run(*flags, "-o", tmp_path / "out.npy", "--dimensions", 16)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    expected = [output.outputs.embedding for output in LLM(str(model), dtype="float32").embed(["rain", "bread"])]
    assert lines == expected
    assert np.load(tmp_path / "out.npy").shape == (2, 16)


@pytest.mark.parametrize(("content", "said"), [(b"", "is empty"), (b"a\n\nb", "line 2 is empty"), (b"\xff", "UTF-8")])
def test_files_that_are_refused(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        read_lines(str(path))
