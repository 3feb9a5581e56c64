"""Decoder, base of all families: attention and MLP after norms, over a paged cache. A family states its difference.

Weights keep their checkpoint names; q, k and v become one matrix, gate and up another.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ....kernels import ops
from ...errors import ConfigError
from ...formats.weights import WeightSource
from .config import ModelConfig
from .forward_inputs import Arrays, Inputs, select
from .forward_plan import ForwardPlan
from .kv_cache import KVCache
from .layer_states import LayerState
from .layers import GATED_ACTIVATIONS, MLP, Attention, Norm, RMSNorm, activation
from .rope import rope_table
from .tensor_parallel import SINGLE_RANK, TensorParallel, rows_of_parts, take_rows

_log = logging.getLogger("splitfuse.engine")
Parts = list[tuple[str, int]]  # matrices of one input: name, number of rows
_MAX_LOADING = 4  # layers loaded at once: loading a layer takes more memory than the layer keeps


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: attention and MLP, each with the norm before it."""

    attention_norm: Norm
    attention: Callable[[Tensor, Inputs, Any], Tensor]  # with the layer's view of the cache (kv_cache.py)
    mlp_norm: Norm
    mlp: Callable[[Tensor], Tensor]


class WeightNames(NamedTuple):
    """Names of a family's weights."""

    prefix: str = "model."  # before every name but the head's; missing if only the base model was saved
    embed: str = "embed_tokens"
    norm: str = "norm"
    layers: str = "layers"
    attention_norm: str = "input_layernorm"  # this name and the following ones are within a layer
    attention: str = "self_attn"
    o_proj: str = "o_proj"  # within attention
    mlp_norm: str = "post_attention_layernorm"
    mlp: str = "mlp"


class Decoder:
    """Llama-shaped model: RMSNorm, rotary embedding, grouped-query attention, SwiGLU.

    Families override their differences: reading config.json, names of weights, building or running a part.
    """

    partial_rotary: ClassVar[bool] = False  # True if a part of a head, or all of it, may stay unrotated
    names: ClassVar[WeightNames] = WeightNames()
    qkv_bias: ClassVar[bool | None] = None  # None: config.attention_bias decides
    o_bias: ClassVar[bool | None] = None
    ignored: ClassVar[tuple[str, ...]] = ("rotary_emb.inv_freq", "lm_head.weight")  # endings of unread tensors' names
    has_one_gate_up: ClassVar[bool] = False  # True if the files have one matrix for gate and up
    qk_norm: ClassVar[bool] = False  # RMSNorm on each query and key head, before the rotation
    attention_class: ClassVar[type[Attention]] = Attention
    unrounded: ClassVar[tuple[str, ...]] = ()  # endings of matrices' names that --quantization leaves alone
    inexact: ClassVar[str | None] = None  # reason why an op of the family may round otherwise in another batch

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Return config.json, as its row of families.json completes it, with Llama's keys.

        Raises ConfigError for values that would give silently wrong results.
        """
        return dict(raw)

    @classmethod
    def layer_states(cls, config: ModelConfig) -> tuple[LayerState, ...]:
        """Return what each layer keeps of the tokens before. Raises ConfigError for sizes that are missing."""
        return config.layer_states

    def __init__(
        self,
        config: ModelConfig,
        source: WeightSource,
        *,
        device: torch.device,
        max_model_len: int,
        dtype: torch.dtype,
        weight_bits: int = 16,
        has_fp8_weights: bool = False,
        input_bits: tuple[int, int] = (16, 16),
        parallel: TensorParallel = SINGLE_RANK,
    ) -> None:
        if not self.partial_rotary and any(rope.rotary_dim != config.head_dim for rope in config.ropes):
            raise ConfigError(f"partial_rotary_factor other than 1 is not known for {config.architecture}")
        self.config = config
        self._source = source
        self._device = device
        self._dtype = dtype
        self._weight_bits = weight_bits
        self._has_fp8_weights = has_fp8_weights
        self._input_bits = input_bits  # two: `ops.pack_linear`'s for most linears, and for robust ones
        self._head_inputs = min(input_bits[False], ops.HEAD_INPUTS)
        self._parallel = parallel
        with_prefix, without = (f"{prefix}{self.names.embed}.weight" for prefix in (self.names.prefix, ""))
        self._prefix = "" if source.has(without) and not source.has(with_prefix) else self.names.prefix
        self._cos_sin = {
            rope: rope_table(rope, num_positions=max_model_len, device=device) for rope in dict.fromkeys(config.ropes)
        }
        self._load()
        if unread := [name for name in source.unread() if not self._is_ignored(name)]:
            raise ConfigError(
                f"the weights have tensors that {config.architecture} would not read, {unread[0]!r} for one of "
                f"{len(unread)}; do they belong to this config.json?"
            )
        del self._source
        self.plan = ForwardPlan(self._run_layers, width=self._embedded_size(), dtype=dtype, device=device)

    def _is_ignored(self, name: str) -> bool:
        """True if a tensor with this name may stay unread."""
        return name.endswith(self.ignored)

    def replace_weights(self, other: "Decoder | None") -> None:
        """Continue as another decoder of the same config, or without weights (None), for all who hold this one."""
        old = self.__dict__
        self.__dict__ = {"config": self.config} if other is None else other.__dict__
        old.clear()  # breaks the cycle with the plan, so the weights are freed at once

    def _load(self) -> None:
        load_layers = [partial(self._load_layer, index) for index in range(self.config.num_layers)]
        _, *self._layers = self._loaded([self._load_vocabulary, *load_layers])
        self._norm = self._load_norm(f"{self._prefix}{self.names.norm}")

    def _load_vocabulary(self) -> None:
        config = self.config
        table = (config.vocab_size, self._embedding_size())
        self._embed_tokens = self._load_embedding(f"{self._prefix}{self.names.embed}.weight", *table)
        head = self._embed_tokens if config.tie_word_embeddings else None
        if head is None or f"{self._head_name()}.weight" in self._source.unread():
            head = self._stored_head(head, *table)
        self._lm_head = self._pack_head(head)

    def _stored_head(self, tied: Any, *table: int) -> Any:
        """Return the stored head. `tied`: the embedding, which stands for a stored head of equal values."""
        stored = self._take_vocabulary(f"{self._head_name()}.weight", *table)
        if isinstance(tied, Tensor) and isinstance(stored, Tensor) and torch.equal(stored, tied):
            return tied
        if tied is not None and not self.config.hf_config.get("is_text_part"):
            _log.warning(
                "config.json ties the head to the embedding, but the files hold another head (%s.weight), which is "
                "used, as transformers does; set tie_word_embeddings to false to silence this line",
                self._head_name(),
            )
        return stored

    def _loaded(self, parts: Sequence[Callable[[], Any]]) -> list[Any]:
        """Load all parts, on a CPU in several threads, because one waits after each small tensor operation.

        With busy neighbours SmolLM2's 30 layers load from its GGUF in 0.8 s, and in 1.5 s one after the other.
        """
        num_threads = min(_MAX_LOADING, torch.get_num_threads())
        if num_threads == 1 or self._device.type != "cpu":  # weights for a GPU are read ahead in this order
            return [load() for load in parts]
        pool = ThreadPoolExecutor(num_threads, thread_name_prefix="splitfuse-load")
        try:
            return list(pool.map(lambda load: load(), parts))
        finally:
            pool.shutdown(cancel_futures=True)

    def _load_embedding(self, name: str, *shape: int) -> Any:
        """Return a plain embedding, or a packed one if the files quantize it; a tied head shares the packed memory."""
        weight = self._take_vocabulary(name, *shape)
        if isinstance(weight, Tensor):
            return weight
        return ops.pack_embedding(weight, dtype=self._dtype, input_bits=self._head_inputs)

    def _take_vocabulary(self, name: str, *shape: int) -> Tensor | ops.QuantizedWeight:
        """Return this rank's rows of a table."""
        weight = self._take_weight(name, *shape)
        if self._parallel.size == 1:
            return weight
        (rows,) = take_rows(weight, [self._parallel.vocabulary(shape[0])])
        return rows.clone() if isinstance(rows, Tensor) else rows

    def _pack_head(self, weight: Any) -> Any:
        if isinstance(weight, Tensor):
            # The head decides between near ties: it keeps 8 bits if the layers have 4, and 16 if they are e4m3.
            return ops.pack_linear(weight, bits=max(8, self._weight_bits), input_bits=self._head_inputs)
        if not isinstance(weight, ops.QuantizedWeight):
            return weight
        return ops.pack_quantized([weight], dtype=self._dtype, input_bits=self._head_inputs)

    def _head_name(self) -> str:
        return "lm_head"

    def _embedding_size(self) -> int:
        return self.config.hidden_size

    def _embedded_size(self) -> int:
        """Width of `_embed`'s result."""
        return self.config.hidden_size

    def padding(self, num_tokens: int) -> Arrays:
        """Return the fields that only this family's steps have, over tokens that are all padding, for CUDA graphs."""
        return {}

    def forward(self, inputs: Inputs, kv_cache: KVCache) -> Tensor:
        """Return the last hidden states at `logits_indices`, [L, hidden_size], as `logits` takes them."""
        return self.plan.run(self._embed(inputs), inputs, kv_cache)

    def _run_layers(self, x: Tensor, inputs: Inputs, kv_cache: KVCache) -> Tensor:
        residual: Tensor | None = None
        last = self._layers[-1] if x.device.type == "cpu" else None  # a GPU's kernels have not run without rows
        for layer, cache in zip(self._layers, kv_cache.layers, strict=True):
            kept = inputs.logits_indices if layer is last else None
            x, residual = self._run_layer(layer, x, residual, inputs, cache, kept)
        return self._norm.add(*(select(inputs.logits_indices, x, residual) if last is None else (x, residual)))[0]

    def streams(self, inputs: Inputs, kv_cache: KVCache) -> list[Tensor]:
        """Return the residual stream of the last token behind each layer, float32 [hidden_size], to compare models."""
        found, run_layer = [], self._run_layer

        def kept(layer: Layer, *args: Any) -> tuple[Tensor, Tensor | None]:
            x, residual = run_layer(layer, *args)
            found.append((x if residual is None else x + residual)[-1].float())
            return x, residual

        self._run_layer = kept  # type: ignore[method-assign, assignment]
        try:
            self._run_layers(self._embed(inputs), inputs, kv_cache)
        finally:
            del self._run_layer
        return found

    def _embed(self, inputs: Inputs) -> Tensor:
        if self._parallel.size == 1:
            return self._look_up(inputs.token_ids)
        return self._parallel.embed(self._look_up, inputs.token_ids, vocab_size=self.config.vocab_size)

    def _look_up(self, token_ids: Tensor) -> Tensor:
        if isinstance(self._embed_tokens, Tensor):
            return self._embed_tokens.index_select(0, token_ids)
        return ops.embedding(token_ids, self._embed_tokens)

    def _run_layer(
        self, layer: Layer, x: Tensor, residual: Tensor | None, inputs: Inputs, cache: Any, kept: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return (the output, which the next norm adds to the residual stream; the stream so far), of kept rows."""
        x, residual = layer.attention_norm.add(x, residual)
        x, residual = select(kept, layer.attention(x, inputs, cache), residual)
        x, residual = layer.mlp_norm.add(x, residual)
        return layer.mlp(x), residual

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [L, vocab_size] of hidden states [L, hidden_size]. They are wide: the caller chooses L.

        Their dtype is the model's, or float32 if a family changes them.
        """
        logits = ops.linear(hidden, self._lm_head)
        return self._parallel.gather_logits(logits, vocab_size=self.config.vocab_size)

    def _load_layer(self, index: int) -> Layer:
        layer = self._layer_name(index)
        return Layer(
            attention_norm=self._load_norm(f"{layer}.{self.names.attention_norm}"),
            attention=self._load_attention(index),
            mlp_norm=self._load_norm(f"{layer}.{self.names.mlp_norm}"),
            mlp=self._load_mlp(index),
        )

    def _layer_name(self, index: int) -> str:
        return f"{self._prefix}{self.names.layers}.{index}"

    def _load_norm(self, name: str) -> Norm:
        return RMSNorm(self._norm_weight(name, self.config.hidden_size), self.config.norm_eps)

    def _norm_weight(self, name: str, size: int) -> Tensor:
        return self._take(f"{name}.weight", size)

    def _load_attention(self, index: int) -> Attention:
        config, name = self.config, f"{self._layer_name(index)}.{self.names.attention}"
        q_size, o_bias = config.num_heads * config.head_dim, self.o_bias
        if o_bias is None:
            o_bias = config.attention_bias
        return self.attention_class(
            qkv_proj=self._load_qkv(name),
            o_proj=self._row_parallel_linear(f"{name}.{self.names.o_proj}", config.hidden_size, q_size, bias=o_bias),
            num_heads=config.num_heads // self._parallel.size,
            num_kv_heads=self._num_own_kv_heads,
            head_dim=config.head_dim,
            rope=ops.RopeArgs(
                self._cos_sin[config.ropes[index]],
                q_norm=self._norm_weight(f"{name}.q_norm", config.head_dim) if self.qk_norm else None,
                k_norm=self._norm_weight(f"{name}.k_norm", config.head_dim) if self.qk_norm else None,
                eps=config.norm_eps,
            ),
            args=ops.AttentionArgs(config.head_dim**-0.5, sliding_window=config.sliding_windows[index]),
        )

    def _load_qkv(self, name: str) -> Any:
        config = self.config
        q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        parts = [(f"{name}.q_proj", q_size), (f"{name}.k_proj", kv_size), (f"{name}.v_proj", kv_size)]
        bias = config.attention_bias if self.qkv_bias is None else self.qkv_bias
        return self._linear(parts, config.hidden_size, bias=bias, rows=self._qkv_rows)

    @property
    def _qkv_rows(self) -> list[slice]:
        """This rank's rows of the matrix of queries, keys and values."""
        return self._parallel.qkv_rows(self.config.num_heads, self.config.num_kv_heads, self.config.head_dim)

    @property
    def _num_own_kv_heads(self) -> int:
        heads = self._parallel.kv_heads(self.config.num_kv_heads)
        return int(heads.stop - heads.start)

    def _load_mlp(self, index: int) -> Callable[[Tensor], Tensor]:
        """Return the part of a layer after attention."""
        return self._load_gated_mlp(f"{self._layer_name(index)}.{self.names.mlp}", self.config.intermediate_size)

    def _load_gated_mlp(self, mlp: str, inner: int) -> MLP:
        hidden, bias, rows = self.config.hidden_size, self.config.mlp_bias, self._parallel.gate_up_rows(inner)
        halves = [(f"{mlp}.{half}_proj", inner) for half in ("gate", "up")]
        parts = [(f"{mlp}.gate_up_proj", 2 * inner)] if self.has_one_gate_up else halves
        return MLP(
            self._linear(parts, hidden, bias=bias, rows=rows, is_robust=True),
            activation(self.config.hidden_act, GATED_ACTIVATIONS),
            self._row_parallel_linear(f"{mlp}.down_proj", hidden, inner, bias=bias, is_robust=True),
        )

    def _take(self, name: str, *shape: int) -> Tensor:
        return self._source.take(name, shape).to(self._device)

    def _linear(
        self, parts: Parts, num_inputs: int, *, bias: bool, rows: Sequence[slice] | None = None, is_robust: bool = False
    ) -> Any:
        """Stack matrices, and keep these rows (None: all). Rounding the inputs of a robust one costs little."""
        rows = [slice(0, sum(size for _, size in parts))] if rows is None or self._parallel.size == 1 else rows
        stacked_bias = torch.cat([self._take(f"{name}.bias", size) for name, size in parts]) if bias else None
        if stacked_bias is not None:
            stacked_bias = torch.cat([stacked_bias[part] for part in rows])
        weights = [
            piece
            for (name, size), kept in zip(parts, rows_of_parts(rows, [size for _, size in parts]), strict=True)
            for piece in take_rows(self._take_weight(f"{name}.weight", size, num_inputs), kept)
        ]
        quantized = [weight for weight in weights if isinstance(weight, ops.QuantizedWeight)]
        if len(quantized) == len(weights):
            return self._pack_quantized(quantized, stacked_bias, is_robust=is_robust)
        return self._pack(torch.cat([self._plain(weight) for weight in weights]), stacked_bias, is_robust=is_robust)

    def _row_parallel_linear(self, name: str, size: int, inner: int, *, bias: bool, is_robust: bool = False) -> Any:
        """Return a packed matrix whose inputs are spread over the ranks."""
        parallel = self._parallel
        if parallel.is_whole:
            return self._linear([(name, size)], inner, bias=bias, is_robust=is_robust)
        weight = self._take_weight(f"{name}.weight", size, inner)
        whole_bias = self._take(f"{name}.bias", size) if bias else None
        return ops.pack_row_parallel(
            weight,
            whole_bias if parallel.rank == 0 else None,
            columns=parallel.slices(inner),
            group=parallel.group,
            dtype=self._dtype,
            bits=self._weight_bits,
            input_bits=self._input_bits[is_robust],
            is_fp8=self._has_fp8_weights,
        )

    def _take_weight(self, name: str, *shape: int) -> Tensor | ops.QuantizedWeight:
        """Take a weight in the form that the files have, quantized or plain."""
        quantized = self._source.take_quantized(name, shape)
        return self._take(name, *shape) if quantized is None else quantized.to(self._device)

    def _plain(self, weight: Tensor | ops.QuantizedWeight) -> Tensor:
        return weight if isinstance(weight, Tensor) else weight.dequantized().to(self._dtype)

    def _pack(self, weight: Tensor, bias: Tensor | None = None, *, is_robust: bool = False) -> Any:
        if self._has_fp8_weights:
            return ops.pack_fp8(weight, bias)
        return ops.pack_linear(weight, bias, bits=self._weight_bits, input_bits=self._input_bits[is_robust])

    def _pack_quantized(
        self, parts: list[ops.QuantizedWeight], bias: Tensor | None = None, *, is_robust: bool = False
    ) -> Any:
        return ops.pack_quantized(parts, bias, dtype=self._dtype, input_bits=self._input_bits[is_robust])
