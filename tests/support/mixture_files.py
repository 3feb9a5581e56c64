"""GGUF files of random mixtures, written block by block: no weights are in memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf_files import add_vocabulary
from tiny_models import VOCAB_SIZE

# Offsets of the halves in a block that scale it, and their value: with wider weights attention is to one token alone,
# and engines that round differently part after a few tokens. Other bytes may be random.
_HALVES = {Type.Q4_0: (0,), Type.Q8_0: (0,), Type.Q4_K: (0, 2), Type.Q5_K: (0, 2), Type.Q6_K: (208,)}
_SCALES = {Type.Q4_0: 1e-3, Type.Q8_0: 2e-4, Type.Q4_K: 1e-4, Type.Q5_K: 5e-5, Type.Q6_K: 1e-5}
_MXFP4_EXPONENT = 119  # 2^-8
_BLOCKS_AT_ONCE = 2**16
_Part = tuple[str, tuple[int, ...], Type]


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Shape of a mixture, and the types of its matrices. Defaults: Qwen3-30B-A3B with few layers and tokens."""

    architecture: str = "qwen3moe"
    num_layers: int = 8
    hidden: int = 2048
    inner: int = 768
    num_heads: int = 32
    num_kv_heads: int = 4
    head_dim: int = 128
    value_dim: int = 128
    dense_inner: int = 6144  # of layers without experts
    num_experts: int = 128
    top_k: int = 8
    vocab_size: int = VOCAB_SIZE
    context_len: int = 4096
    kind: Type = Type.Q4_K
    down_kind: Type | None = None  # of the experts' down projections; None: `kind`
    dense_kind: Type | None = None  # of attention; None: `kind`
    embedding_kind: Type = Type.Q8_0
    output_kind: Type = Type.Q8_0

    def fields(self, writer: gguf.GGUFWriter) -> None:
        """Write the metadata."""
        writer.add_context_length(self.context_len)
        writer.add_embedding_length(self.hidden)
        writer.add_block_count(self.num_layers)
        writer.add_head_count(self.num_heads)
        writer.add_head_count_kv(self.num_kv_heads)
        writer.add_key_length(self.head_dim)
        writer.add_value_length(self.value_dim)
        writer.add_vocab_size(self.vocab_size)
        writer.add_feed_forward_length(self.dense_inner)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_expert_count(self.num_experts)
        writer.add_expert_used_count(self.top_k)
        writer.add_expert_feed_forward_length(self.inner)
        writer.add_rope_freq_base(1000000.0)
        add_vocabulary(writer, self.vocab_size)

    def parts(self) -> Iterator[_Part]:
        """Yield the tensors."""
        yield "token_embd.weight", (self.vocab_size, self.hidden), self.embedding_kind
        yield "output.weight", (self.vocab_size, self.hidden), self.output_kind
        yield "output_norm.weight", (self.hidden,), Type.F32
        for layer in range(self.num_layers):
            for name, shape, kind in self._layer(layer):
                yield f"blk.{layer}.{name}", shape, kind

    def num_bytes(self) -> tuple[int, int]:
        """Return the bytes of all experts, and of the other matrices and vectors that every step reads."""
        experts = others = 0
        for name, shape, kind in self.parts():
            size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
            num_bytes = int(np.prod(shape)) // size * block_bytes
            if "_exps." in name:
                experts += num_bytes
            elif not name.startswith("token_embd"):
                others += num_bytes
        return experts, others

    def _layer(self, number: int) -> Iterator[_Part]:
        query, key = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        dense = self.dense_kind or self.kind
        yield "attn_norm.weight", (self.hidden,), Type.F32
        yield "attn_q.weight", (query, self.hidden), dense
        yield "attn_k.weight", (key, self.hidden), dense
        yield "attn_v.weight", (key, self.hidden), dense
        yield "attn_output.weight", (self.hidden, query), dense
        yield from self._experts()
        yield from self._others()

    def _experts(self) -> Iterator[_Part]:
        experts = self.num_experts
        yield "ffn_gate_inp.weight", (experts, self.hidden), Type.F32
        yield "ffn_gate_exps.weight", (experts, self.inner, self.hidden), self.kind
        yield "ffn_up_exps.weight", (experts, self.inner, self.hidden), self.kind
        yield "ffn_down_exps.weight", (experts, self.hidden, self.inner), self.down_kind or self.kind

    def _others(self) -> Iterator[_Part]:
        yield "attn_q_norm.weight", (self.head_dim,), Type.F32
        yield "attn_k_norm.weight", (self.head_dim,), Type.F32
        yield "ffn_norm.weight", (self.hidden,), Type.F32


class GptOss(Mixture):
    """Mixture with biases, sinks and windows."""

    def fields(self, writer: gguf.GGUFWriter) -> None:
        super().fields(writer)
        writer.add_sliding_window(128)
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(32.0)
        writer.add_rope_scaling_orig_ctx_len(4096)

    def _others(self) -> Iterator[_Part]:
        experts, query, key = self.num_experts, self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        yield "post_attention_norm.weight", (self.hidden,), Type.F32
        yield "attn_sinks.weight", (self.num_heads,), Type.F32
        yield "attn_q.bias", (query,), Type.F32
        yield "attn_k.bias", (key,), Type.F32
        yield "attn_v.bias", (key,), Type.F32
        yield "attn_output.bias", (self.hidden,), Type.F32
        yield "ffn_gate_inp.bias", (experts,), Type.F32
        yield "ffn_gate_exps.bias", (experts, self.inner), Type.F32
        yield "ffn_up_exps.bias", (experts, self.inner), Type.F32
        yield "ffn_down_exps.bias", (experts, self.hidden), Type.F32


class Latents(Mixture):
    """DeepSeek-V2-Lite with a rank of queries, without which llama.cpp wants all 27 layers."""

    rank, nope, rope = 512, 128, 64  # of latents, of a head's parts without and with positions

    def fields(self, writer: gguf.GGUFWriter) -> None:
        super().fields(writer)
        writer.add_q_lora_rank(self.rank)
        writer.add_kv_lora_rank(self.rank)
        writer.add_key_length_mla(self.nope + self.rope)
        writer.add_value_length_mla(self.nope)
        writer.add_rope_dimension_count(self.rope)
        writer.add_leading_dense_block_count(1)
        writer.add_expert_shared_count(2)
        writer.add_expert_weights_scale(1.0)

    def _layer(self, number: int) -> Iterator[_Part]:
        hidden, heads, rank = self.hidden, self.num_heads, self.rank
        for norm, width in ("attn", hidden), ("ffn", hidden), ("attn_q_a", rank), ("attn_kv_a", rank):
            yield f"{norm}_norm.weight", (width,), Type.F32
        yield "attn_q_a.weight", (rank, hidden), self.kind
        yield "attn_q_b.weight", (heads * (self.nope + self.rope), rank), self.kind
        yield "attn_kv_a_mqa.weight", (rank + self.rope, hidden), self.kind
        yield "attn_k_b.weight", (heads, rank, self.nope), self.kind
        yield "attn_v_b.weight", (heads, self.nope, rank), self.kind
        yield "attn_output.weight", (hidden, heads * self.nope), self.kind
        ending, width = ("_shexp", 2 * self.inner) if number else ("", self.dense_inner)
        yield f"ffn_gate{ending}.weight", (width, hidden), self.kind
        yield f"ffn_up{ending}.weight", (width, hidden), self.kind
        yield f"ffn_down{ending}.weight", (hidden, width), self.kind
        if number:
            yield from self._experts()


# Published shapes but for their number of layers (48, 24 and 27), in the types of their files.
MIXTURES = {
    "qwen3-30b-a3b": Mixture(
        vocab_size=151936, context_len=40960, kind=Type.Q4_0, embedding_kind=Type.Q4_0, output_kind=Type.Q6_K
    ),
    "gpt-oss-20b": GptOss(
        architecture="gpt-oss", num_layers=6, hidden=2880, inner=2880, num_heads=64, num_kv_heads=8,
        head_dim=64, value_dim=64, num_experts=32, top_k=4, vocab_size=201088, kind=Type.MXFP4, dense_kind=Type.Q8_0,
    ),
    "deepseek-v2-lite": Latents(
        architecture="deepseek2", num_layers=4, inner=1408, num_heads=16, num_kv_heads=1, head_dim=576, value_dim=512,
        dense_inner=10944, num_experts=64, top_k=6, vocab_size=102400, kind=Type.Q4_0, embedding_kind=Type.Q4_0,
        output_kind=Type.Q6_K,
    ),
}  # fmt: skip


def write_mixture(path: Path, mixture: Mixture) -> None:
    """Write a mixture of random blocks."""
    writer = gguf.GGUFWriter(path, mixture.architecture)
    mixture.fields(writer)
    parts = list(mixture.parts())
    for name, shape, of in parts:
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
    for name, shape, of in parts:
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
    if kind is Type.MXFP4:
        blocks[:, 0] = _MXFP4_EXPONENT
    for at in _HALVES.get(kind, ()):
        blocks[:, at : at + 2] = np.array([_SCALES[kind]], dtype=np.float16).view(np.uint8)
    return blocks.tobytes()
