"""ModernBERT (Warner et al. 2024): rotary positions, norms before each part, GEGLU, windows in two layers of three."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

from torch import Tensor

from ....execution.models.decoder import Decoder, Layer, WeightNames
from ....execution.models.forward_inputs import Inputs
from ....execution.models.layer_norm_decoder import LayerNormDecoder
from ....execution.models.layers import ACTIVATIONS, MLP, Activation, LayerNorm, NoNorm, Norm, activation
from ..families import num_labels_of
from ..heads import Norm as HeadNorm
from ..heads import on_host
from .encoder import Encoder

_THETAS = (("full_attention", "global_rope_theta", 160_000.0), ("sliding_attention", "local_rope_theta", 10_000.0))


def _gated(activate: Activation, up_gate: Tensor) -> Tensor:
    """activate(up) · gate, with up_gate = [up | gate] along the last dimension: [T, 2·I] -> [T, I]."""
    up, gate = up_gate.chunk(2, dim=-1)
    return activate(up.contiguous()) * gate


class ModernBertModel(Encoder):
    """Encoder with pre-norms; the first layer's attention has none, because the embedding is normalised."""

    names = WeightNames(
        embed="embeddings.tok_embeddings", norm="final_norm", attention_norm="attn_norm", attention="attn", o_proj="Wo",
        mlp_norm="mlp_norm",
    )  # fmt: skip
    ignored: ClassVar[tuple[str, ...]] = ("head.dense.weight", "head.norm.weight", "decoder.bias", "decoder.weight")

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        every, num_layers = int(raw.get("global_attn_every_n_layers", 3)), int(raw["num_hidden_layers"])
        kinds = ["sliding_attention" if index % every else "full_attention" for index in range(num_layers)]
        ropes = raw.get("rope_parameters") or {}
        return super().normalize_config(
            {
                **raw,
                "layer_types": raw.get("layer_types") or kinds,
                "rope_parameters": {
                    kind: {"rope_theta": raw.get(name, default), **(ropes.get(kind) or {})}
                    for kind, name, default in _THETAS
                },
                "rms_norm_eps": raw.get("norm_eps", 1e-5),
                "hidden_act": raw.get("hidden_activation", "gelu"),
                "sliding_window": int(raw.get("local_attention", 128)) // 2 + 1,
            }
        )

    def _load(self) -> None:
        super()._load()
        self._embed_norm = self._load_norm(f"{self._prefix}embeddings.norm")

    def _load_norm(self, name: str) -> Norm:
        if name == f"{self._layer_name(0)}.{self.names.attention_norm}":
            return NoNorm()
        config = self.config
        bias = self._take(f"{name}.bias", config.hidden_size) if config.hf_config.get("norm_bias") else None
        return LayerNorm(self._take(f"{name}.weight", config.hidden_size), bias, config.norm_eps)

    def _load_qkv(self, name: str) -> Any:
        hidden, bias = self.config.hidden_size, self.config.attention_bias
        return self._linear([(f"{name}.Wqkv", 3 * hidden)], hidden, bias=bias, rows=self._qkv_rows)

    def _load_mlp(self, index: int) -> Callable[[Tensor], Tensor]:
        config, name = self.config, f"{self._layer_name(index)}.mlp"
        hidden, inner = config.hidden_size, config.intermediate_size
        up = self._linear([(f"{name}.Wi", 2 * inner)], hidden, bias=config.mlp_bias, is_robust=True)
        down = self._linear([(f"{name}.Wo", hidden)], inner, bias=config.mlp_bias, is_robust=True)
        return MLP(up, partial(_gated, activation(config.hidden_act, ACTIVATIONS)), down)

    def _run_layer(
        self, layer: Layer, x: Tensor, residual: Tensor | None, inputs: Inputs, cache: Any, kept: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        return Decoder._run_layer(self, layer, x, residual, inputs, cache, kept)

    def _embed(self, inputs: Inputs) -> Tensor:
        return self._embed_norm(LayerNormDecoder._embed(self, inputs))


class ModernBertForSequenceClassification(ModernBertModel):
    """ModernBERT with a head and a classifier on the first token or the mean."""

    ignored = ()

    def _load_pooling_heads(self) -> None:
        config, fields = self.config, self.config.hf_config
        self.pooling_type = str(fields.get("classifier_pooling", "cls")).upper()
        activation, has_bias = str(fields.get("classifier_activation", "gelu")), bool(fields.get("classifier_bias"))
        norm_weight = on_host(self._take("head.norm.weight", config.hidden_size))
        norm_bias = on_host(self._take("head.norm.bias", config.hidden_size)) if fields.get("norm_bias") else None
        self.pooling_heads = [
            self._load_dense("head.dense", config.hidden_size, activation=activation, bias=has_bias),
            HeadNorm(norm_weight, norm_bias, config.norm_eps),
            self._load_dense("classifier", num_labels_of(config)),
        ]
