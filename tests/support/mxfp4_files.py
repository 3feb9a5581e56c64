"""MXFP4 checkpoints of the tiny gpt-oss."""

import json
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file, save_file
from tiny_models import save_model
from transformers import PreTrainedModel
from transformers.integrations.mxfp4 import convert_moe_packed_tensors


def packed(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round a plain [E, in, out] to (blocks [E, out, in / 32, 16], scales [E, out, in / 32])."""
    rows = weight.transpose(1, 2).contiguous()
    num_experts, num_outputs, num_inputs = rows.shape
    raw = torch.from_numpy(np.array(gguf.quantize(rows.float().numpy(), Type.MXFP4))).view(-1, 17)
    codes = torch.cat((raw[:, 1:] & 15, raw[:, 1:] >> 4), dim=1)  # GGUF has the first sixteen in the lower halves
    blocks = codes[:, ::2] | codes[:, 1::2] << 4
    shape = (num_experts, num_outputs, num_inputs // 32)
    return blocks.view(*shape, 16), raw[:, 0].contiguous().view(shape)


def save_mxfp4(folder: Path) -> PreTrainedModel:
    """Write a tiny gpt-oss in MXFP4, and return it with the experts that transformers reads."""
    model = save_model("gpt-oss", folder)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    parameters = dict(model.named_parameters())
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        blocks, scales = packed(tensors.pop(name))
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        parameters[name].data.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
    save_file(tensors, path, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (folder / "config.json").write_text(json.dumps(config))
    return model
