"""Adapters with random weights as peft writes them, and models into which they are merged."""

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def random_adapter(
    model: PreTrainedModel, *, seed: int, rank: int = 8, targets: Sequence[str] = TARGETS, size: float = 0.3
) -> dict[str, Tensor]:
    """Make peft's tensors of an adapter for the linears with these names; its change is about `size` of the weight."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        if name.rpartition(".")[2] not in targets:
            continue
        weight = module.weight.T if type(module).__name__ == "Conv1D" else module.weight
        factor = (size * float(weight.detach().std()) / rank**0.5) ** 0.5
        for half, shape in (("lora_A", (rank, weight.shape[1])), ("lora_B", (weight.shape[0], rank))):
            key = f"base_model.model.{name}.{half}.weight"
            tensors[key] = torch.randn(*shape, generator=generator) * factor
    assert tensors, f"{type(model).__name__} has none of {targets}"
    return tensors


def save_adapter(folder: Path, tensors: Mapping[str, Tensor], **fields: Any) -> Path:
    """Write an adapter as peft does."""
    folder.mkdir(parents=True, exist_ok=True)
    rank = min(len(tensor) for name, tensor in tensors.items() if "lora_A" in name)
    targets = sorted({name.split(".")[-3] for name in tensors})
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": targets, "bias": "none", **fields}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "adapter_model.safetensors")
    return folder


def merged(model: PreTrainedModel, tensors: Mapping[str, Tensor], *, scale: float = 1.0) -> PreTrainedModel:
    """Return a copy of the model with W + scale · B A in place of W."""
    result = copy.deepcopy(model)
    modules = dict(result.named_modules())
    for key, a in tensors.items():
        if "lora_A" not in key:
            continue
        module = modules[key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")]
        b = tensors[key.replace("lora_A", "lora_B")]
        change = (b.double() @ a.double() * scale).to(torch.float32)
        with torch.no_grad():
            module.weight += change.T if type(module).__name__ == "Conv1D" else change
    return result
