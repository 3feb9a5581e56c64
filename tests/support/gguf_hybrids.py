"""GGUF metadata and tensors of models with recurrent states, in the manner of llama.cpp's converter (conversion/)."""

from collections.abc import Iterator
from typing import Any

import gguf
import torch
from torch import Tensor
from transformers import PretrainedConfig

_ARCHITECTURES = {
    "bamba": "granitehybrid",
    "falcon_h1": "falcon-h1",
    "granitemoehybrid": "granitehybrid",
    "lfm2": "lfm2",
    "lfm2_moe": "lfm2moe",
    "mamba2": "mamba2",
    "nemotron_h": "nemotron_h",
    "qwen3_5_moe_text": "qwen35moe",
    "qwen3_5_text": "qwen35",
    "qwen3_next": "qwen3next",
}


def architecture_of(config: PretrainedConfig) -> str:
    """Return general.architecture."""
    if config.model_type == "nemotron_h" and "moe" in config.layers_block_type:
        return "nemotron_h_moe"
    return _ARCHITECTURES[config.model_type]


def add_fields(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    """Add the metadata of the model's shape."""
    architecture, num_layers = architecture_of(config), config.num_hidden_layers
    kinds = _kinds(config)
    writer.add_name("A tiny one")
    writer.add_context_length(getattr(config, "max_position_embeddings", 2**20))
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(num_layers)
    writer.add_vocab_size(config.vocab_size)
    eps = (getattr(config, name, None) for name in ("rms_norm_eps", "layer_norm_epsilon", "norm_eps"))
    writer.add_layer_norm_rms_eps(next(filter(None, eps)))
    writer.add_head_count(getattr(config, "num_attention_heads", 0))
    inner = getattr(config, "intermediate_size", None) or 0
    if architecture == "lfm2":
        inner = _lfm2_width(config)
    writer.add_feed_forward_length(
        [inner if kind in ("mlp", "moe") else 0 for kind in kinds] if architecture.startswith("nemotron") else inner
    )
    if architecture.startswith("qwen"):
        _add_delta(writer, config)
    elif architecture.startswith("lfm2"):
        writer.add_shortconv_l_cache(config.conv_L_cache)
        heads = config.num_key_value_heads
        writer.add_head_count_kv([heads if kind == "full_attention" else 0 for kind in kinds])
    else:
        _add_mamba(writer, config, kinds)
    if architecture != "mamba2":
        if head_dim := getattr(config, "head_dim", None):
            writer.add_key_length(head_dim)
            writer.add_value_length(head_dim)
        if rope := getattr(config, "rope_parameters", None):
            head_dim = head_dim or config.hidden_size // config.num_attention_heads
            writer.add_rope_freq_base(rope["rope_theta"])
            num_rotated = int(head_dim * rope.get("partial_rotary_factor", 1.0))
            writer.add_rope_dimension_count(num_rotated)
            if architecture in ("qwen35", "qwen35moe"):  # of a text all sections have equal positions
                height = num_rotated // 2 // 3
                writer.add_rope_dimension_sections([num_rotated // 2 - 2 * height, height, height, 0])
    _add_experts(writer, config, architecture)


def _lfm2_width(config: PretrainedConfig) -> int:
    """Return the width of the MLP, as transformers' Lfm2MLP rounds it."""
    inner, multiple = config.intermediate_size, config.block_multiple_of
    if config.block_auto_adjust_ff_dim:
        inner = 2 * inner // 3
        if config.block_ffn_dim_multiplier is not None:
            inner = -(-int(config.block_ffn_dim_multiplier * inner) // multiple) * multiple
    return int(inner)


def _add_delta(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_ssm_state_size(config.linear_key_head_dim)
    writer.add_ssm_group_count(config.linear_num_key_heads)
    writer.add_ssm_time_step_rank(config.linear_num_value_heads)
    writer.add_ssm_inner_size(config.linear_value_head_dim * config.linear_num_value_heads)
    writer.add_full_attention_interval(4)


def _add_mamba(writer: gguf.GGUFWriter, config: PretrainedConfig, kinds: list[str]) -> None:
    num_heads, head_dim, num_groups, state_size = mamba_sizes(config)
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_inner_size(num_heads * head_dim)
    writer.add_ssm_state_size(state_size)
    writer.add_ssm_time_step_rank(num_heads)
    writer.add_ssm_group_count(num_groups)
    if config.model_type == "falcon_h1":
        writer.add_head_count_kv(config.num_key_value_heads)
    elif config.model_type != "mamba2":
        heads = config.num_key_value_heads
        writer.add_head_count_kv([heads if kind == "full_attention" else 0 for kind in kinds])
    if config.model_type in ("bamba", "granitemoehybrid"):
        uses_rope = config.model_type == "bamba" or config.position_embedding_type == "rope"
        writer.add_rope_scaling_finetuned(uses_rope)
    if config.model_type == "granitemoehybrid":
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
        writer.add_expert_shared_feed_forward_length(config.shared_intermediate_size)


def _add_experts(writer: gguf.GGUFWriter, config: PretrainedConfig, architecture: str) -> None:
    names = ("num_experts", "n_routed_experts" if architecture == "nemotron_h_moe" else "num_local_experts")
    if not (num_experts := next((found for name in names if (found := getattr(config, name, None))), 0)):
        return
    if architecture.startswith("nemotron_h") and architecture != "nemotron_h_moe":
        return
    writer.add_expert_count(num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    if architecture.startswith("qwen"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if architecture == "lfm2moe":
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_leading_dense_block_count(config.num_dense_layers)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
    if architecture == "nemotron_h_moe":
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_feed_forward_length(config.moe_shared_expert_intermediate_size)
        writer.add_expert_shared_count(config.n_shared_experts)
        writer.add_expert_weights_norm(config.norm_topk_prob)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_group_count(config.n_group)
        writer.add_moe_latent_size(config.moe_latent_size)


def _kinds(config: PretrainedConfig) -> list[str]:
    kinds: Any = getattr(config, "layers_block_type", None) or getattr(config, "layer_types", ())
    return list(kinds)


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
    if "linear_attn" in key:
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
