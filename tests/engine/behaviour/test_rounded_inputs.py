"""Which linears may round their inputs by default: MLPs and experts of every family."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import CONFIGS, save_model

from splitfuse.engine.execution.models.registry import model_class, read_model_config
from splitfuse.engine.formats.weights import weight_source
from splitfuse.kernels import ops

CPU = torch.device("cpu")


def packed(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, int]]:
    """Load a family's tiny model in 8 bits, and return (shape; None of experts, bits of inputs) of what it packs."""
    save_model(name, folder)
    found: list[tuple[Any, int]] = []
    pack_linear, pack_experts = ops.pack_linear, ops.pack_experts

    def seen_linear(weight: torch.Tensor, *args: Any, input_bits: int = 16, **how: Any) -> Any:
        found.append((tuple(weight.shape), input_bits))
        return pack_linear(weight, *args, input_bits=input_bits, **how)

    def seen_experts(*args: Any, input_bits: int = 16, **how: Any) -> Any:
        found.append((None, input_bits))
        return pack_experts(*args, input_bits=input_bits, **how)

    monkeypatch.setattr(ops, "pack_linear", seen_linear)
    monkeypatch.setattr(ops, "pack_experts", seen_experts)
    config = read_model_config(folder)
    family = model_class(config.architecture)
    how: dict[str, Any] = {"weight_bits": 8, "input_bits": (16, ops.FAST_INPUTS)}
    with weight_source(folder, load_format="auto", dtype=torch.bfloat16, seed=0, device=CPU) as source:
        family(config, source, device=CPU, max_model_len=64, dtype=torch.bfloat16, **how)
    return found


def test_attention_and_the_head_keep_their_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = CONFIGS["llama-gqa-tied"]
    hidden, inner, heads = config.hidden_size, config.intermediate_size, config.num_attention_heads
    head_dim = hidden // heads
    found = set(packed("llama-gqa-tied", tmp_path, monkeypatch))
    assert found == {
        ((config.vocab_size, hidden), ops.HEAD_INPUTS),
        (((heads + 2 * config.num_key_value_heads) * head_dim, hidden), 16),
        ((hidden, heads * head_dim), 16),
        ((2 * inner, hidden), ops.FAST_INPUTS),
        ((hidden, inner), ops.FAST_INPUTS),
    }


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_every_family_has_robust_linears(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A family that builds its own MLP says so, too: of both matrices, or of its experts."""
    found = packed(name, tmp_path, monkeypatch)
    num_robust = sum(2 if shape is None else 1 for shape, bits in found if bits == ops.FAST_INPUTS)
    assert num_robust >= 2 * read_model_config(tmp_path).num_layers
