"""GGUF tensors of models with recurrent states, in the manner of llama.cpp's converter (conversion/)."""

from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import PretrainedConfig


def mamba_sizes(config: PretrainedConfig) -> tuple[int, int, int, int]:
    """Return heads, their width, groups, and the width of a state."""
    if config.model_type == "mamba2":
        return config.num_heads, config.head_dim, config.n_groups, config.state_size
    if config.model_type == "nemotron_h":
        return config.mamba_num_heads, config.mamba_head_dim, config.n_groups, config.ssm_state_size
    return config.mamba_n_heads, config.mamba_d_head, config.mamba_n_groups, config.mamba_d_state


def parts(key: str, values: Tensor, config: PretrainedConfig) -> Iterator[tuple[str, Tensor]]:
    """Return the converter's tensors for one of the model's, under names that the `gguf` package knows."""
    if config.model_type == "falcon_h1":
        values = _scaled(key, values, config)
    if config.model_type == "nemotron_h":
        key = key.replace("model.", "backbone.", 1).replace("e_score_correction_bias", "e_score_correction.bias")
        if ".experts." in key:
            key = key.replace("backbone", "model").replace("mixer", "mlp") + ".weight"
    if config.model_type == "bamba":
        key = key.replace("pre_ff_layernorm", "post_attention_layernorm")
    key = key.replace("block_sparse_moe.router.weight", "block_sparse_moe.router.layer.weight")
    key = key.replace("block_sparse_moe.experts", "mlp.experts").replace(".dt_bias", ".dt_proj.bias")
    key = key.replace(".forget_gate", "")
    if config.model_type == "kimi_linear" and (found := _of_kimi(key, values, config)):
        yield from found
    elif "linear_attn" in key:
        yield from _of_delta(key, values, config)
    elif key.endswith(("A_log", ".D")):
        yield key, (-values.exp() if key.endswith("A_log") else values)[:, None]
    elif "conv1d.weight" in key or "conv.conv.weight" in key:
        yield key, values.squeeze(1)
    elif key.endswith(("mamba.norm.weight", "mixer.norm.weight")):
        yield key, values.view(mamba_sizes(config)[2], -1)
    elif key.endswith("experts.gate_up_proj"):
        halves = (key.replace("gate_up_", half) + ".weight" for half in ("gate_", "up_"))
        yield from zip(halves, values.chunk(2, dim=1), strict=True)
    elif key.endswith("experts.down_proj"):
        yield f"{key}.weight", values
    elif "shared_mlp" in key:
        yield from _of_shared_mlp(key, values, has_experts=bool(config.num_local_experts))
    elif key.endswith("shared_expert_gate.weight"):
        yield key, values[0]
    elif config.model_type.startswith("qwen") and key.endswith("norm.weight"):
        yield key, values + 1
    else:
        yield key, values


def _of_kimi(key: str, values: Tensor, config: PretrainedConfig) -> list[tuple[str, Tensor]]:
    if key.endswith("A_log"):
        return [(key, -values.exp())]
    if "conv1d" in key:
        return [
            (key.replace("conv1d", f"{x}_conv1d"), part[None]) for x, part in zip("qkv", values.chunk(3), strict=True)
        ]
    if not key.endswith("kv_b_proj.weight"):
        return []
    heads = values.view(config.num_attention_heads, -1, values.shape[1])
    keys, values = heads.split_with_sizes([config.qk_nope_head_dim, config.v_head_dim], dim=1)
    return [(key.replace("kv_b", "k_b"), keys.transpose(1, 2)), (key.replace("kv_b", "v_b"), values)]


def _of_shared_mlp(key: str, values: Tensor, *, has_experts: bool) -> Iterator[tuple[str, Tensor]]:
    layer, suffix = key.split(".")[2], "_shexp" if has_experts else ""
    if "output_linear" in key:
        yield f"=blk.{layer}.ffn_down{suffix}.weight", values
        return
    for half, rows in zip(("gate", "up"), values.chunk(2), strict=True):
        yield f"=blk.{layer}.ffn_{half}{suffix}.weight", rows


def _of_delta(key: str, values: Tensor, config: PretrainedConfig) -> Iterator[tuple[str, Tensor]]:
    num_keys, num_values = config.linear_num_key_heads, config.linear_num_value_heads
    key_size, each, per_key = (
        num_keys * config.linear_key_head_dim,
        config.linear_value_head_dim,
        num_values // num_keys,
    )
    if "A_log" in key:
        values = -values.exp()
    if "conv1d" in key:
        values = values.squeeze(1)
    if "in_proj_qkvz" in key:
        keys, rows = config.linear_key_head_dim, per_key * each
        q, k, v, z = (
            part.flatten(0, 1)
            for part in values.view(num_keys, -1, values.shape[1]).split_with_sizes([keys, keys, rows, rows], dim=1)
        )
        yield key.replace("qkvz", "qkv"), torch.cat((q, k, v))
        yield key.replace("qkvz", "z"), z
        return
    if config.model_type != "qwen3_next":  # value heads of a key head are no longer neighbours

        def tiled(x: Tensor, width: int) -> Tensor:
            return x.view(num_keys, per_key, width, *x.shape[1:]).transpose(0, 1).reshape(x.shape)

        if "in_proj_qkv" in key or "conv1d" in key:
            values = torch.cat((values[: 2 * key_size], tiled(values[2 * key_size :], each)))
        elif "in_proj_z" in key:
            values = tiled(values, each)
        elif "out_proj" in key:
            values = tiled(values.T.contiguous(), each).T
        elif "norm" not in key:
            values = tiled(values, 1)
    yield key, values


def _scaled(key: str, values: Tensor, config: PretrainedConfig) -> Tensor:
    """Multiply Falcon-H1's multipliers into a weight."""
    around = config.attention_in_multiplier
    factors = {
        "q_proj": around, "k_proj": around * config.key_multiplier, "v_proj": around,
        "o_proj": config.attention_out_multiplier, "gate_proj": config.mlp_multipliers[0],
        "down_proj": config.mlp_multipliers[1], "out_proj": config.ssm_out_multiplier,
        "lm_head": config.lm_head_multiplier, "embed_tokens": config.embedding_multiplier,
    }  # fmt: skip
    name = key.split(".")[-2]
    if name == "in_proj":
        num_heads, head_dim, num_groups, state_size = mamba_sizes(config)
        sizes = torch.tensor([num_heads * head_dim] * 2 + [num_groups * state_size] * 2 + [num_heads])
        multipliers = torch.tensor(config.ssm_multipliers) * config.ssm_in_multiplier
        folded: Tensor = values * multipliers.repeat_interleave(sizes)[:, None]
    else:
        folded = values * factors.get(name, 1.0)
    return folded
