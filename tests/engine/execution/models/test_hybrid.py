"""Layers with recurrent states: logits of one pass are transformers', and any cut of the tokens gives the same bits."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf_files import GGUF_HYBRIDS, write_gguf
from real_configs import REAL_CONFIGS
from tables import table
from tiny_models import HYBRIDS, VOCAB_SIZE, make_model
from torch import Tensor

from splitfuse.engine.errors import ConfigError
from splitfuse.engine.execution.models.forward_inputs import Inputs
from splitfuse.engine.execution.models.kv_cache import KVCache, StatePool
from splitfuse.engine.execution.models.registry import model_class, parse_model_config, read_model_config
from splitfuse.engine.formats.weights import weight_source
from splitfuse.kernels import ops
from splitfuse.kernels.cpu import build

NUM_TOKENS, BLOCK_SIZE = 100, 16
TOKENS = torch.tensor(random.Random(6).choices(range(VOCAB_SIZE), k=NUM_TOKENS))
CPU = torch.device("cpu")


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    config = read_model_config(folder)
    with weight_source(folder, load_format="auto", dtype=dtype, seed=0, device=CPU) as source:
        return model_class(config.architecture)(config, source, device=CPU, max_model_len=400, dtype=dtype)


def make_cache(model: Any) -> KVCache:
    return KVCache(
        model.config,
        num_blocks=NUM_TOKENS // BLOCK_SIZE + 1,
        block_size=BLOCK_SIZE,
        dtype=torch.float32,
        device=CPU,
        states=StatePool(num_slots=2),
    )


def logits(model: Any, cuts: list[int]) -> Tensor:
    """Return the logits of all tokens, which are processed in steps that end at these cuts."""
    cache = make_cache(model)
    parts, source = [], -1
    for step, (start, end) in enumerate(zip([0, *cuts], [*cuts, NUM_TOKENS], strict=True)):
        target = step % 2
        parts.append(model.logits(model.forward(inputs(start, end, source=source, target=target), cache)))
        source = target
    return torch.cat(parts)


def inputs(start: int, end: int, *, source: int, target: int) -> Inputs:
    count, positions = end - start, torch.arange(start, end)
    ragged = ops.RaggedBatch(
        int32(0, count), int32(end), torch.arange(NUM_TOKENS // BLOCK_SIZE + 1).int()[None], None, count, end
    )
    states = ops.StateBatch(int32(source), int32(target), int32(0), int32(0), int32(0, 0), int32(), int32())
    return Inputs(TOKENS[start:end], positions, positions, ragged, torch.arange(count), states)


def int32(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


@torch.inference_mode()
@pytest.mark.parametrize("name", HYBRIDS)
def test_logits_are_transformers_and_no_cut_changes_a_bit(name: str, tmp_path: Path) -> None:
    theirs = make_model(name)
    theirs.save_pretrained(tmp_path)
    model = load(tmp_path)
    whole = logits(model, [])
    torch.testing.assert_close(whole, theirs(TOKENS[None]).logits[0], atol=2e-4, rtol=2e-4)
    rng = random.Random(name)
    for num_cuts in (1, 5, 20):
        cuts = sorted(rng.sample(range(1, NUM_TOKENS), num_cuts))
        assert torch.equal(logits(model, cuts), whole), cuts


@pytest.mark.parametrize("name", ["qwen3.5", "mamba2"])
def test_a_recurrences_numbers_are_not_rounded_to_the_models_dtype(name: str, tmp_path: Path) -> None:
    theirs = write_gguf(tmp_path / "model.gguf", name)
    theirs.save_pretrained(tmp_path / "folder")
    numbers = dict(theirs.named_parameters())
    for path in (tmp_path / "folder", tmp_path / "model.gguf"):
        part = load(path, torch.bfloat16)._layers[0].attention
        for ours, ending in ((part.a_log, ".A_log"), (part.dt_bias, ".dt_bias")):
            expected = next(value.data for key, value in numbers.items() if "layers.0." in key and key.endswith(ending))
            if name == "qwen3.5" and path.is_file():  # heads in the file's order
                expected = expected.view(2, 2).T.flatten()
            torch.testing.assert_close(ours, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("name", "changes", "refusal"), table(__file__, "refused"))
def test_refuses_by_name(name: str, changes: dict[str, Any], refusal: str) -> None:
    with pytest.raises(ConfigError, match=refusal):
        parse_model_config({**REAL_CONFIGS[name], **changes}, generation={})


@torch.inference_mode()
@pytest.mark.parametrize("name", HYBRIDS)
def test_a_plan_runs_all_layers_but_experts(name: str, tmp_path: Path) -> None:
    if build.library() is None:
        pytest.skip("needs a C++ compiler for the native CPU library")
    make_model(name).save_pretrained(tmp_path)
    model = load(tmp_path)
    cache, batch = make_cache(model), inputs(0, NUM_TOKENS, source=-1, target=1)
    if not getattr(model.config.hf_config.get("experts"), "layers", ()):
        assert model.plan.refusal(cache) is None
    op_by_op = model._run_layers(model._embed(batch), batch, cache)
    assert torch.equal(model.forward(batch, cache), op_by_op)


# Rows of neither are mixed by the converter, so their values are rounded as the model's.
@torch.inference_mode()
@pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, Type.F32) for name in GGUF_HYBRIDS), ("qwen3-next", Type.Q8_0), ("granite-hybrid", Type.Q8_0)],
)
def test_gguf_files_give_transformers_logits(name: str, kind: Type, tmp_path: Path) -> None:
    theirs = write_gguf(tmp_path / "model.gguf", name, kind=kind)
    ours = logits(load(tmp_path / "model.gguf"), [])
    torch.testing.assert_close(ours, theirs(TOKENS[None]).logits[0], atol=2e-4, rtol=2e-4)
