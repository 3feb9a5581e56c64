"""Gemma 3n (Gemma Team 2025): four residual streams, low-rank layers beside attention, sparse MLPs; its text part."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import Any

from torch import Tensor

from ....kernels import ops
from ...errors import ConfigError
from ...formats.json_file import positive_int
from .decoder import Layer, WeightNames
from .forward_inputs import Inputs
from .gemma import dual_ropes
from .hybrid import check_values
from .kv_cache import KVCache
from .layer_states import PagedKV
from .layers import MLP, Norm, Normed, RMSNorm
from .shared_kv_gemma import PerLayerInput, SharedKVGemma, text_fields

_NUM_STREAMS = 4
_HALF = 0.5**0.5


@dataclass(frozen=True, slots=True)
class AltUp:
    """Prediction of all streams before a layer, and their correction by the layer's result (Baykal et al. 2023)."""

    router_norm: Norm
    router: Any
    prediction: Any
    correction: Any

    def predict(self, streams: list[Tensor], added: Tensor | None) -> list[Tensor]:
        return ops.altup_predict(streams, added, ops.linear(self._route(streams[0]), self.prediction))

    def correct(self, predictions: list[Tensor], activated: Tensor) -> list[Tensor]:
        return ops.altup_correct(predictions, activated, ops.linear(self._route(activated), self.correction))

    def _route(self, x: Tensor) -> Tensor:
        return ops.activation(ops.linear(self.router_norm(x), self.router), "tanh")


@dataclass(frozen=True, slots=True)
class Laurel:
    """Low-rank layer: x + norm(right(left(x))) (Menghani et al. 2024, LAuReL)."""

    left: Any
    right: Any
    norm: Norm

    def __call__(self, x: Tensor) -> Tensor:
        return x + self.norm(ops.linear(ops.linear(x, self.left), self.right))


@dataclass(frozen=True, slots=True)
class Gemma3nLayer(Layer):
    """Layer on the first stream; its per-layer input goes to the others."""

    altup: AltUp
    laurel: Laurel
    per_layer_input: PerLayerInput

    def __call__(
        self, streams: list[Tensor], added: Tensor | None, embedded: Tensor, inputs: Inputs, cache: Any
    ) -> tuple[list[Tensor], Tensor]:
        """Return the corrected streams, and the term to add to every stream but the first."""
        predictions = self.altup.predict(streams, added)
        x = self.attention_norm(predictions[0])
        attended = predictions[0] + self.attention(x, inputs, cache)
        x = (attended + self.laurel(x)).mul_(_HALF)
        corrected = self.altup.correct(predictions, x + self.mlp(self.mlp_norm(x)))
        return corrected, self.per_layer_input(corrected[0], embedded)


class Gemma3nForCausalLM(SharedKVGemma):
    """SharedKVGemma with four streams."""

    ignored = (*SharedKVGemma.ignored, "altup.correct_output_scale")  # unread if the config turns it off

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = text_fields(raw)
        check_values(fields, altup_num_inputs=_NUM_STREAMS, altup_active_idx=0)
        num_layers = positive_int(fields, "num_hidden_layers")
        if not fields.get("layer_types"):
            layers = range(1, num_layers + 1)
            fields["layer_types"] = ["sliding_attention" if layer % 5 else "full_attention" for layer in layers]
        if fields.get("activation_sparsity_pattern") is None:
            num_sparse = 10 if num_layers > 10 else 0
            fields["activation_sparsity_pattern"] = [0.95] * num_sparse + [0.0] * (num_layers - num_sparse)
        sizes, sparsity = fields["intermediate_size"], fields["activation_sparsity_pattern"]
        sizes = sizes if isinstance(sizes, list) else [sizes] * num_layers
        sparsity = sparsity if isinstance(sparsity, list) else [sparsity] * num_layers
        if len(sizes) != num_layers or len(sparsity) != num_layers or not all(0 <= share < 1 for share in sparsity):
            raise ConfigError(
                "intermediate_size and activation_sparsity_pattern must have a value for each of "
                f"{num_layers} layers, the latter's from 0 to below 1"
            )
        ropes = dual_ropes(fields)
        fields = super().normalize_config({**fields, "intermediate_size": max(sizes)})
        paged = PagedKV(positive_int(fields, "num_key_value_heads"), positive_int(fields, "head_dim"))
        own = {"paged": (paged,) * num_layers, "mlp_sizes": tuple(sizes), "sparsity": tuple(sparsity)}
        return {**fields, **own, "rope_parameters": ropes}

    def _load(self) -> None:
        if not self._input_size:
            raise ConfigError("hidden_size_per_layer_input 0 is not known for Gemma 3n")
        super()._load()
        hidden, numbers = self.config.hidden_size, range(_NUM_STREAMS - 1)
        self._expand, self._collapse = (
            [self._linear([(f"{self._prefix}{name}.{b}", hidden)], hidden, bias=False) for b in numbers]
            for name in ("altup_projections", "altup_unembed_projections")
        )

    def _load_layer(self, index: int) -> Gemma3nLayer:
        layer, hidden, rank = self._layer_name(index), self.config.hidden_size, self.config.hf_config["laurel_rank"]
        return Gemma3nLayer(
            attention_norm=self._load_norm(f"{layer}.input_layernorm"),
            attention=Normed(self._load_attention(index), self._load_norm(f"{layer}.post_attention_layernorm")),
            mlp_norm=self._load_norm(f"{layer}.pre_feedforward_layernorm"),
            mlp=Normed(self._load_mlp(index), self._load_norm(f"{layer}.post_feedforward_layernorm")),
            altup=self._load_altup(f"{layer}.altup"),
            laurel=Laurel(
                self._linear([(f"{layer}.laurel.linear_left", rank)], hidden, bias=False),
                self._linear([(f"{layer}.laurel.linear_right", hidden)], rank, bias=False),
                self._load_norm(f"{layer}.laurel.post_laurel_norm"),
            ),
            per_layer_input=self._load_per_layer_input(index),
        )

    def _load_altup(self, name: str) -> AltUp:
        hidden = self.config.hidden_size
        weight = self._norm_weight(f"{name}.router_norm", hidden).float() / hidden
        router, prediction, correction = (
            ops.pack_linear(self._plain(self._take_weight(f"{name}.{part}.weight", num_outputs, num_inputs)))
            for part, num_outputs, num_inputs in (
                ("modality_router", _NUM_STREAMS, hidden),
                ("prediction_coefs", _NUM_STREAMS**2, _NUM_STREAMS),
                ("correction_coefs", _NUM_STREAMS, _NUM_STREAMS),
            )
        )
        return AltUp(RMSNorm(weight, self.config.norm_eps), router, prediction, correction)

    def _load_mlp(self, index: int) -> MLP:
        fields = self.config.hf_config
        mlp = self._load_gated_mlp(f"{self._layer_name(index)}.mlp", fields["mlp_sizes"][index])
        if not (share := fields["sparsity"][index]):
            return mlp
        sparse = partial(ops.sparse_gelu_mul, num_deviations=NormalDist().inv_cdf(share))
        return MLP(mlp.up_proj, sparse, mlp.down_proj)

    def _load_input_gate(self, layer: str) -> Any:
        """Return the gate, whose inputs the checkpoint scales."""
        if not self.config.hf_config["altup_correct_scale"]:
            return super()._load_input_gate(layer)
        hidden = self.config.hidden_size
        weight = self._plain(self._take_weight(f"{layer}.per_layer_input_gate.weight", self._input_size, hidden))
        scale = self._take(f"{layer}.altup.correct_output_scale", hidden)
        return self._pack((weight.float() * scale.float()).to(self._dtype))

    def _run_layers(self, x: Tensor, inputs: Inputs, kv_cache: KVCache) -> Tensor:
        x, per_layer = self._split_inputs(x, inputs)
        streams = [x, *(ops.match_rms(ops.linear(x, projection), x) for projection in self._expand)]
        added: Tensor | None = None
        for layer, embedded, cache in zip(self._layers, per_layer, kv_cache.layers, strict=True):
            assert isinstance(layer, Gemma3nLayer)
            streams, added = layer(streams, added, embedded, inputs, cache)
        assert added is not None
        first, *others, added = (stream.index_select(0, inputs.logits_indices) for stream in (*streams, added))
        total = first
        for stream, projection in zip(others, self._collapse, strict=True):
            total = total + ops.match_rms(ops.linear(stream + added, projection), first)
        return self._norm(total.mul_(1 / _NUM_STREAMS))


class Gemma3nForConditionalGeneration(Gemma3nForCausalLM):
    """Gemma 3n beside encoders of images and sound, which stay unread."""

    names = WeightNames(prefix="model.language_model.")
