"""TransformersModel: a model beside Decoder, whose layers are transformers' modules, run over our paged cache."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPast

from ....kernels import ops
from ...errors import ConfigError
from ...execution.models.config import ModelConfig
from ...execution.models.decoder import WeightNames
from ...execution.models.forward_inputs import Arrays, Inputs
from ...execution.models.kv_cache import KVCache
from ...execution.models.tensor_parallel import SINGLE_RANK, TensorParallel
from ...formats.weights import WeightSource
from .attention import SERVED, running
from .config import build, read_shape
from .probe import LayerAttention
from .weights import ModuleLoader


class _HiddenStates(BaseModelOutputWithPast):  # type: ignore[misc]
    """Output of a base model with hidden states alone: losses and routers' scores are None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class _Hidden(nn.Module):
    """Stand-in for the base model while a class computes the logits of chosen hidden states."""

    hidden: Tensor

    @property
    def decoder(self) -> "_Hidden":
        """Part that some classes call instead of the whole."""
        return self

    def padding(self, num_tokens: int) -> Arrays:
        """Like Decoder.padding."""
        return {}

    def forward(self, *args: Any, **options: Any) -> BaseModelOutputWithPast:
        return _HiddenStates(last_hidden_state=self.hidden)


class _OpByOp:
    """Plan of a model that has no native plan."""

    def refusal(self, kv_cache: KVCache) -> str:
        return "through transformers"


class _PagedForward:
    """Forward pass of one ragged batch over the paged cache."""

    def __init__(self, layers: list[LayerAttention], no_rope: ops.RopeArgs, inputs: Inputs, cache: KVCache) -> None:
        self._layers = layers
        self._no_rope = no_rope
        self._inputs = inputs
        self._views = cache.layers

    def attend(self, module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, options: dict[str, Any]) -> Tensor:
        layer, view, inputs = self._layers[module.layer_idx], self._views[module.layer_idx], self._inputs
        width = v.shape[3]
        if width < layer.head_dim:
            v = nn.functional.pad(v, (0, layer.head_dim - width))
        keys, values = (x[0].transpose(0, 1).contiguous() for x in (k, v))
        ops.rope_and_cache(keys, keys, values, inputs.positions, inputs.slot_mapping, self._no_rope, view)
        args = ops.AttentionArgs(layer.scale, sliding_window=layer.sliding_window, softcap=layer.softcap)
        out = ops.paged_attention(q[0].transpose(0, 1), view, inputs.ragged, args)
        return (out if width == layer.head_dim else out[:, :, :width])[None]

    def mask(self, mask_function: Callable[..., Any]) -> None:
        return None


class TransformersModel:
    """Model of any architecture whose layers call transformers' attention interface. For one thread."""

    names: ClassVar[WeightNames] = WeightNames()
    unrounded: ClassVar[tuple[str, ...]] = ()
    inexact: ClassVar[str | None] = "transformers' modules run in torch, whose ops depend on the batch"

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
        if not parallel.is_whole:
            raise ConfigError(f"--tensor-parallel-size is not built for {config.architecture} through transformers")
        self.config = config
        self.plan = _OpByOp()
        self._dtype = dtype
        self._weight_bits = weight_bits
        self._has_fp8_weights = has_fp8_weights
        self._input_bits = input_bits[0]  # no linear is known to be robust
        self._layers = read_shape(config.hf_config, {}).layers
        self._no_rope = ops.RopeArgs(torch.empty(max_model_len, 0, device=device))
        self._model = build(config.hf_config, SERVED, dtype=dtype, experts="eager")
        ModuleLoader(self._model, source, dtype=dtype, device=device, pack=self._pack).load()
        prefix = self._model.base_model_prefix
        self._base, self._hidden = getattr(self._model, prefix), _Hidden()
        setattr(self._model, prefix, self._hidden)

    def _pack(self, weights: list[Any], bias: Tensor | None, *, is_head: bool) -> Any:
        if isinstance(weights[0], ops.QuantizedWeight):
            return ops.pack_quantized(weights, bias, dtype=self._dtype, input_bits=self._input_bits)
        weight = torch.cat(weights) if len(weights) > 1 else weights[0]
        if self._has_fp8_weights and not is_head:
            return ops.pack_fp8(weight, bias)
        bits = max(8, self._weight_bits) if is_head else self._weight_bits
        return ops.pack_linear(weight, bias, bits=bits, input_bits=self._input_bits)

    def forward(self, inputs: Inputs, kv_cache: KVCache) -> Tensor:
        """Return the last hidden states at `logits_indices`, [L, hidden_size], as `logits` takes them."""
        with running(_PagedForward(self._layers, self._no_rope, inputs, kv_cache)):
            output = self._base(input_ids=inputs.token_ids[None], position_ids=inputs.positions[None], use_cache=False)
        hidden: Tensor = output.last_hidden_state[0].index_select(0, inputs.logits_indices)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [L, vocab_size] by the class's own head, with its caps and scales."""
        self._hidden.hidden = hidden[None]
        ids = torch.zeros(1, len(hidden), dtype=torch.int64, device=hidden.device)
        logits: Tensor = self._model(input_ids=ids, use_cache=False).logits[0]
        return logits
