"""GGUF metadata and tensors of Gemma 3n and 4, in the manner of llama.cpp's converter (conversion/gemma.py)."""

from collections.abc import Iterator
from statistics import NormalDist

import gguf
import numpy as np
import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel


def add_fields(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    """Add the metadata of the model's shape."""
    slides = [kind == "sliding_attention" for kind in config.layer_types]
    ropes = config.rope_parameters
    writer.add_name("A tiny one")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(ropes["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(ropes["sliding_attention"]["rope_theta"])
    if config.final_logit_softcapping:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_sliding_window(config.sliding_window)
    writer.add_sliding_window_pattern(slides)
    writer.add_shared_kv_layers(config.num_kv_shared_layers)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input)
    if config.model_type == "gemma3n_text":
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
        writer.add_altup_active_idx(config.altup_active_idx)
        writer.add_altup_num_inputs(config.altup_num_inputs)
        shares = config.activation_sparsity_pattern
        writer.add_activation_sparsity_scale([NormalDist().inv_cdf(x) if x else -float("inf") for x in shares])
        return
    _add_gemma4(writer, config)


def _add_gemma4(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    layers = [config.per_layer_config[layer] for layer in range(config.num_hidden_layers)]
    full, narrow = (layers[config.layer_types.index(kind)].head_dim for kind in ("full_attention", "sliding_attention"))
    heads = [layer.num_key_value_heads for layer in layers]
    writer.add_head_count_kv(heads if len({*heads}) > 1 else heads[0])
    writer.add_key_length(full)
    writer.add_value_length(full)
    writer.add_key_length_swa(narrow)
    writer.add_value_length_swa(narrow)
    writer.add_rope_dimension_count(full)
    writer.add_rope_dimension_count_swa(narrow)
    size, first = config.intermediate_size, config.num_hidden_layers - config.num_kv_shared_layers
    is_double = config.use_double_wide_mlp
    writer.add_feed_forward_length(
        [size if layer < first else 2 * size for layer in range(config.num_hidden_layers)] if is_double else size
    )
    if config.enable_moe_block:
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.top_k_experts)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    num_pairs = int(full * config.rope_parameters["full_attention"]["partial_rotary_factor"]) // 2
    divisors = [1.0] * num_pairs + [1e30] * (full // 2 - num_pairs)
    writer.add_tensor("rope_freqs.weight", np.array(divisors, dtype=np.float32))


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
