"""Llama 4 (Meta AI 2025): attention within chunks, layers without positions, experts that weigh their inputs."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ....kernels import ops
from ...errors import ConfigError
from ...formats.json_file import positive_int
from .decoder import WeightNames
from .forward_inputs import Inputs
from .interleaved_rope import InterleavedRope
from .kv_cache import KVCache
from .layers import Attention
from .mistral import QueryScale
from .moe import ExpertsConfig, SparseDecoder

_KINDS = ("chunked_attention", "full_attention")


class Llama4ForCausalLM(InterleavedRope, SparseDecoder):
    """SparseDecoder. Layers without positions have full attention, whose queries grow with their positions."""

    names = WeightNames(mlp="feed_forward")
    sparse_block = "feed_forward"
    router_name = "router"
    has_fused_form = False
    routes_by_sigmoid = True

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        num_layers, every = positive_int(raw, "num_hidden_layers"), positive_int(raw, "no_rope_layer_interval")
        layers = range(num_layers)
        rotated = raw.get("no_rope_layers") or [int((layer + 1) % every != 0) for layer in layers]  # 1: with rope
        kinds = raw.get("layer_types") or [_KINDS[not rotates] for rotates in rotated]
        if len(rotated) < num_layers or len(kinds) != num_layers:
            raise ConfigError(f"no_rope_layers and layer_types must have {num_layers} entries, one for each layer")
        if unknown := set(kinds) - set(_KINDS):
            raise ConfigError(f"layer_types: {unknown.pop()!r} is not known; known: {', '.join(_KINDS)}")
        sparse = raw.get("moe_layers")
        chunk = raw["attention_chunk_size"] and positive_int(raw, "attention_chunk_size")
        return super().normalize_config(
            {
                **raw,
                "rotated": tuple(map(bool, rotated)),
                "chunks": tuple(chunk or 0 if kind == "chunked_attention" else 0 for kind in kinds),
                "layer_types": None,
                "sliding_window": None,
                "norm_topk_prob": False,
                "moe_intermediate_size": raw["intermediate_size"],
                "intermediate_size": raw["intermediate_size_mlp"],
                "decoder_sparse_step": raw["interleave_moe_layer_step"] if sparse is None else 1,
                "mlp_only_layers": () if sparse is None else tuple(set(layers) - set(sparse)),
            }
        )

    def _load(self) -> None:
        fields, num_positions = self.config.hf_config, len(self._cos_sin[self.config.ropes[0]])
        self._chunks = [chunk if chunk < num_positions else 0 for chunk in fields["chunks"]]
        self._query_scale: QueryScale | None = None  # so that the native plan serves the lengths that need none
        if fields["attn_temperature_tuning"] and num_positions >= positive_int(fields, "floor_scale"):
            steps = torch.floor((torch.arange(num_positions, dtype=torch.float32) + 1.0) / fields["floor_scale"])
            self._query_scale = QueryScale((torch.log1p(steps) * fields["attn_scale"] + 1.0).to(self._device))
        super()._load()

    def _load_attention(self, index: int) -> Attention:
        attention, fields = super()._load_attention(index), self.config.hf_config
        rope = attention.rope
        if not fields["rotated"][index]:
            rope = rope._replace(cos_sin=rope.cos_sin[:, :0].contiguous())
            return replace(attention, rope=rope, by_position=self._query_scale)
        if not fields["use_qk_norm"]:
            return attention
        ones = torch.ones(self.config.head_dim, dtype=self._dtype, device=self._device)
        return replace(attention, rope=rope._replace(q_norm=ones, k_norm=ones))  # a rotation changes no norm

    def _expert_args(self) -> ops.ExpertArgs:
        return ops.ExpertArgs(weighs_inputs=True)

    def _load_shared_expert(self, index: int) -> Callable[[Tensor], Tensor]:
        inner = self.config.hf_config["moe_intermediate_size"]
        return self._load_gated_mlp(f"{self._layer_name(index)}.feed_forward.shared_expert", inner)

    def _experts(self, block: str, config: ExpertsConfig) -> Iterator[ops.ExpertWeights]:
        names, hidden = (f"{block}.experts.gate_up_proj", f"{block}.experts.down_proj"), self.config.hidden_size
        if not self._source.has(names[0]):
            yield from super()._experts(block, config)
            return
        gate_up = self._take(names[0], config.num_experts, hidden, 2 * config.intermediate_size)
        down = self._take(names[1], config.num_experts, config.intermediate_size, hidden)
        for first, second in zip(gate_up, down, strict=True):
            yield ops.ExpertWeights(first.T.chunk(2), second.T)

    def _run_layers(self, x: Tensor, inputs: Inputs, kv_cache: KVCache) -> Tensor:
        if not any(self._chunks):
            return super()._run_layers(x, inputs, kv_cache)
        in_chunks = {0: inputs}
        for chunk in set(self._chunks) - {0}:
            ragged = chunked(inputs.ragged, chunk=chunk, block_size=kv_cache.block_size)
            in_chunks[chunk] = inputs._replace(ragged=ragged)
        residual: Tensor | None = None
        for chunk, layer, cache in zip(self._chunks, self._layers, kv_cache.layers, strict=True):
            x, residual = self._run_layer(layer, x, residual, in_chunks[chunk], cache)
        kept = inputs.logits_indices
        return self._norm.add(x.index_select(0, kept), None if residual is None else residual.index_select(0, kept))[0]


class Llama4ForConditionalGeneration(Llama4ForCausalLM):
    """Llama 4 beside an encoder of images, which stays unread."""

    names = Llama4ForCausalLM.names._replace(prefix="language_model.model.")

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        text = raw.get("text_config") or {}
        return super().normalize_config({**raw, **text, "architectures": raw["architectures"]})

    def _head_name(self) -> str:
        return "language_model.lm_head" if self._prefix else "lm_head"

    def _is_ignored(self, name: str) -> bool:
        return super()._is_ignored(name) or name.startswith(("vision_model.", "multi_modal_projector."))


def chunked(ragged: ops.RaggedBatch, *, chunk: int, block_size: int) -> ops.RaggedBatch:
    """Return the batch with a row for each chunk of positions that has queries: they see the positions of their chunk.

    Every row becomes as many rows as one can touch, some without tokens, so no number is read back from the device.
    Raises ConfigError if a chunk does not begin with a block.
    """
    if chunk % block_size:
        raise ConfigError(f"--block-size {block_size} does not divide attention_chunk_size {chunk}; give one that does")
    starts, seq_lens, tables = ragged.query_start_loc.long(), ragged.seq_lens.long(), ragged.block_tables
    num_parts = 1 if ragged.max_query_len == 1 else (ragged.max_query_len - 2) // chunk + 2
    first = seq_lens - starts.diff()  # position of each row's first query
    parts = torch.arange(num_parts, device=starts.device)
    begins = (first.clamp(min=0) // chunk)[:, None] * chunk + parts * chunk  # [B, parts], positions
    before = torch.minimum((begins - first[:, None]).clamp(min=0), starts.diff()[:, None]) * (parts > 0)
    width = min(chunk // block_size, tables.shape[1])
    num_decodes = ragged.num_decodes if num_parts == 1 else None
    if ragged.plans is not None:
        num_decodes = 0  # the work lists are of the rows before: the kernel of prompts, which needs none, attends
    blocks = (begins // block_size)[:, :, None] + torch.arange(width, device=starts.device)
    blocks = blocks.clamp(max=tables.shape[1] - 1)
    return ragged._replace(
        query_start_loc=torch.cat(((starts[:-1, None] + before).flatten(), starts[-1:])).int(),
        seq_lens=(seq_lens[:, None] - begins).clamp(0, chunk).flatten().int(),
        block_tables=tables.gather(1, blocks.flatten(1)).view(-1, width),
        num_decodes=num_decodes,
        max_query_len=min(ragged.max_query_len, chunk),
        max_seq_len=min(ragged.max_seq_len, chunk),
        plans=None,
    )
