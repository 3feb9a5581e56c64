"""GGUF files of random mixtures, Qwen3-30B-A3B's or DeepSeek-V2-Lite's, written block by block, not from memory."""

from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf_files import add_vocabulary
from tiny_models import VOCAB_SIZE

# Offsets of the halves in a block that scale it; other bytes may be random.
_HALVES = {Type.Q4_0: (0,), Type.Q8_0: (0,), Type.Q4_K: (0, 2), Type.Q6_K: (208,)}
_BLOCKS_AT_ONCE = 2**16


def write_mixture(
    path: Path,
    *,
    num_layers: int,
    hidden: int = 2048,
    inner: int = 768,
    num_experts: int = 128,
    kind: Type = Type.Q4_K,
    down_kind: Type | None = None,
) -> None:
    """Write a Qwen3-MoE with random blocks of `kind`, in the down projections of `down_kind`."""
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_context_length(4096)
    writer.add_embedding_length(hidden)
    writer.add_block_count(num_layers)
    writer.add_head_count(hidden // 64)
    writer.add_head_count_kv(4)
    writer.add_key_length(128)
    writer.add_value_length(128)
    writer.add_vocab_size(VOCAB_SIZE)
    writer.add_feed_forward_length(3 * hidden)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_expert_count(num_experts)
    writer.add_expert_used_count(8)
    writer.add_expert_feed_forward_length(inner)
    writer.add_rope_freq_base(1000000.0)
    add_vocabulary(writer)
    heads = hidden // 64 * 128
    shapes: dict[str, tuple[tuple[int, ...], Type]] = {
        "token_embd.weight": ((VOCAB_SIZE, hidden), Type.Q8_0),
        "output.weight": ((VOCAB_SIZE, hidden), Type.Q8_0),
        "output_norm.weight": ((hidden,), Type.F32),
    }
    for layer in range(num_layers):
        parts: dict[str, tuple[tuple[int, ...], Type]] = {
            "attn_norm": ((hidden,), Type.F32),
            "attn_q": ((heads, hidden), kind),
            "attn_k": ((512, hidden), kind),
            "attn_v": ((512, hidden), kind),
            "attn_q_norm": ((128,), Type.F32),
            "attn_k_norm": ((128,), Type.F32),
            "attn_output": ((hidden, heads), kind),
            "ffn_norm": ((hidden,), Type.F32),
            "ffn_gate_inp": ((num_experts, hidden), Type.F32),
            "ffn_gate_exps": ((num_experts, inner, hidden), kind),
            "ffn_up_exps": ((num_experts, inner, hidden), kind),
            "ffn_down_exps": ((num_experts, hidden, inner), down_kind or kind),
        }
        shapes |= {f"blk.{layer}.{name}.weight": part for name, part in parts.items()}
    _write(writer, shapes)


def write_latent(path: Path, *, num_layers: int = 4, kind: Type = Type.Q4_0) -> None:
    """Write layers of DeepSeek-V2-Lite with a rank of queries, without which llama.cpp wants all 27 layers."""
    hidden, heads, nope, rope, rank, values, inner = 2048, 16, 128, 64, 512, 128, 1408
    writer = gguf.GGUFWriter(path, "deepseek2")
    writer.add_context_length(4096)
    writer.add_embedding_length(hidden)
    writer.add_block_count(num_layers)
    writer.add_head_count(heads)
    writer.add_head_count_kv(1)
    writer.add_q_lora_rank(rank)
    writer.add_kv_lora_rank(rank)
    writer.add_key_length(rank + rope)
    writer.add_value_length(rank)
    writer.add_key_length_mla(nope + rope)
    writer.add_value_length_mla(values)
    writer.add_vocab_size(VOCAB_SIZE)
    writer.add_feed_forward_length(10944)
    writer.add_leading_dense_block_count(1)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_expert_count(64)
    writer.add_expert_used_count(6)
    writer.add_expert_shared_count(2)
    writer.add_expert_weights_scale(1.0)
    writer.add_expert_feed_forward_length(inner)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(rope)
    add_vocabulary(writer)
    shapes: dict[str, tuple[tuple[int, ...], Type]] = {
        "token_embd.weight": ((VOCAB_SIZE, hidden), Type.Q8_0),
        "output.weight": ((VOCAB_SIZE, hidden), Type.Q8_0),
        "output_norm.weight": ((hidden,), Type.F32),
    }
    for layer in range(num_layers):
        parts: dict[str, tuple[tuple[int, ...], Type]] = {
            **{f"{norm}_norm": ((hidden,), Type.F32) for norm in ("attn", "ffn")},
            **{f"attn_{part}_norm": ((rank,), Type.F32) for part in ("q_a", "kv_a")},
            "attn_q_a": ((rank, hidden), kind),
            "attn_q_b": ((heads * (nope + rope), rank), kind),
            "attn_kv_a_mqa": ((rank + rope, hidden), kind),
            "attn_k_b": ((heads, rank, nope), kind),
            "attn_v_b": ((heads, values, rank), kind),
            "attn_output": ((hidden, heads * values), kind),
        }
        sizes = {"shexp": 2 * inner} if layer else {"": 10944}
        for suffix, width in sizes.items():
            ending = f"_{suffix}" if suffix else ""
            parts |= {f"ffn_{part}{ending}": ((width, hidden), kind) for part in ("gate", "up")}
            parts[f"ffn_down{ending}"] = ((hidden, width), kind)
        if layer:
            parts["ffn_gate_inp"] = ((64, hidden), Type.F32)
            parts |= {f"ffn_{part}_exps": ((64, inner, hidden), kind) for part in ("gate", "up")}
            parts["ffn_down_exps"] = ((64, hidden, inner), kind)
        shapes |= {f"blk.{layer}.{name}.weight": part for name, part in parts.items()}
    _write(writer, shapes)


def _write(writer: gguf.GGUFWriter, shapes: dict[str, tuple[tuple[int, ...], Type]]) -> None:
    for name, (shape, of) in shapes.items():
        size, num_bytes = gguf.GGML_QUANT_SIZES[of]
        row_bytes = shape[-1] // size * num_bytes
        stored = (*shape[:-1], row_bytes) if of is not Type.F32 else shape
        total = int(np.prod(shape[:-1])) * row_bytes
        dtype = np.dtype(np.uint8 if of is not Type.F32 else np.float32)
        writer.add_tensor_info(name, stored, dtype, total, raw_dtype=of)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    assert writer.fout is not None
    file, rng = writer.fout[0], np.random.default_rng(0)
    for name, (shape, of) in shapes.items():
        writer.write_padding(file, file.tell())
        count = int(np.prod(shape)) // gguf.GGML_QUANT_SIZES[of][0]
        for begin in range(0, count, _BLOCKS_AT_ONCE):
            file.write(_random(name, min(_BLOCKS_AT_ONCE, count - begin), of, rng))
        writer.write_padding(file, file.tell())
    writer.close()


def _random(name: str, count: int, kind: Type, rng: np.random.Generator) -> bytes:
    if kind is Type.F32:
        numbers = np.ones(count) if name.endswith("norm.weight") else rng.standard_normal(count) / 32
        return numbers.astype(np.float32).tobytes()
    blocks = rng.integers(0, 256, (count, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    for at in _HALVES[kind]:
        blocks[:, at : at + 2] = np.array([1e-3 if len(_HALVES[kind]) == 1 else 1e-4], dtype=np.float16).view(np.uint8)
    return blocks.tobytes()
