"""`splitfuse bench quality`: the distance of a model from its float32 form, and a bar that every kernel keeps."""

import json
from pathlib import Path

import pytest
import torch

from splitfuse.engine.config.named_models import GET_SMOLLM2, default_model
from splitfuse.engine.errors import ConfigError
from splitfuse.engine.extras.bench.divergence import _columns, _figures, compare
from splitfuse.engine.extras.bench.quality import main

BAR = 0.0055  # 0.0040 by default, 0.0068 with int8 inputs of every layer
needs_smollm2 = pytest.mark.skipif(default_model() != "smollm2", reason=f"needs SmolLM2: {GET_SMOLLM2}")
COMMON = {"num_tokens": 80, "num_threads": 1}


class Fixed:
    """Runner whose model knows its logits."""

    def __init__(self, logits: list[list[float]]) -> None:
        self.loaded = type("Loaded", (), {"states": None})
        self.model, self.cache, self._logits = self, None, torch.tensor(logits)

    def forward(self, inputs, cache):
        return inputs.positions

    def logits(self, positions):
        return self._logits[positions]


def test_figures_are_those_of_the_formulas() -> None:
    half, three_to_one = [0.0, 0.0], [torch.tensor(3.0).log().item(), 0.0]
    figures = _figures(_columns(Fixed([three_to_one] * 4), Fixed([half] * 4), [0, 0, 0, 1]))  # type: ignore[arg-type]
    # Of (1/2, 1/2) from (3/4, 1/4): ln(2/3) / 2 + ln(2) / 2. The first position has no context, the last no next token.
    assert figures.num_tokens == 2
    assert figures.divergence == pytest.approx(0.143841)
    assert figures.perplexity == pytest.approx((0.75 * 0.25) ** -0.5)
    assert figures.reference_perplexity == pytest.approx(2.0)


def test_the_reference_is_no_distance_from_itself() -> None:
    settings = {"dtype": "float32", "quantization_activations": "none"}
    figures = compare("demo", {"a": "Once upon a time " * 30}, reference="demo", settings=settings, **COMMON)["a"]
    assert (figures.num_tokens, figures.divergence, figures.equal_tokens) == (78, 0.0, 1.0)
    assert figures.perplexity == figures.reference_perplexity


def test_weights_of_four_bits_are_at_a_distance(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "tale.txt").write_text("Once upon a time there was a little dog. " * 10)
    flags = ["--num-tokens", "60", "--quantization", "int4", "--text", str(tmp_path / "tale.txt"), "--json"]
    assert main(["demo", *flags]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["tale"] == figures["all"]
    assert 1e-4 < figures["all"]["divergence"] < figures["all"]["divergence_p99"]
    assert figures["all"]["perplexity"] != figures["all"]["reference_perplexity"]


def test_a_text_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--text .*none\.txt"):
        main(["demo", "--text", str(tmp_path / "none.txt")])
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(ConfigError, match="empty: a text of at least three tokens"):
        main(["demo", "--text", str(tmp_path / "empty.txt")])


@needs_smollm2
def test_no_kernel_moves_smollm2_further_from_float32(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["smollm2", "--num-tokens", "70", "--num-threads", "1", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["all"]["num_tokens"] == 3 * 68
    assert figures["all"]["divergence"] < BAR
    assert figures["all"]["equal_tokens"] > 0.9
