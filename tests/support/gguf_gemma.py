"""GGUF tensors of Gemma 3n and 4, in the manner of llama.cpp's converter (conversion/gemma.py)."""

from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import PreTrainedModel


def parts(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Yield names of the checkpoint, or `=` and a name of the file, with the values."""
    state = dict(model.named_parameters())
    state |= {name: value for name, value in model.named_buffers() if name.endswith("layer_scalar")}
    num_layers = model.config.num_hidden_layers
    for key, values in state.items():
        bare = f"=blk.{key.split('.')[2]}."
        if key.endswith(".0.weight") and "altup_" in key:
            stem = key.removesuffix(".0.weight")
            yield f"{stem}.weight", torch.stack([state[f"{stem}.{n}.weight"] for n in range(3)])
        elif "altup_projections" in key or "altup_unembed_projections" in key:
            continue
        elif key.endswith("router.scale"):
            yield f"{bare}ffn_gate_inp.scale", values
        elif key.endswith("per_expert_scale"):
            yield f"{bare}ffn_down_exps.scale", values
        elif key.endswith(("layer_scalar", "correct_output_scale", "experts.gate_up_proj", "experts.down_proj")):
            yield f"{key}.weight", values
        else:
            yield key, values
    if model.config.model_type == "gemma3n_text":  # its checkpoints have keys and values in all layers
        for key in [key for key in state if key.startswith("model.layers.0.self_attn.") and key[25:26] in "kv"]:
            for layer in range(num_layers - model.config.num_kv_shared_layers, num_layers):
                yield key.replace(".0.", f".{layer}.", 1), torch.full_like(state[key], torch.nan)
