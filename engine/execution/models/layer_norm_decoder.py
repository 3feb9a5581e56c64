"""LayerNormDecoder, base of the families before Llama and some later ones: LayerNorm, mostly an MLP without a gate."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from torch import Tensor

from .decoder import Decoder
from .layers import ACTIVATIONS, MLP, LayerNorm, Norm, activation


class LayerNormDecoder(Decoder):
    """Decoder with LayerNorm (mean and bias) and an MLP of two matrices, up and down."""

    mlp_names: ClassVar[tuple[str, str] | None]  # up and down, within a layer; None: Llama's MLP with a gate

    def _load_norm(self, name: str) -> Norm:
        size = self.config.hidden_size
        return LayerNorm(self._take(f"{name}.weight", size), self._take(f"{name}.bias", size), self.config.norm_eps)

    def _load_mlp(self, index: int) -> Callable[[Tensor], Tensor]:
        if self.mlp_names is None:
            return super()._load_mlp(index)
        hidden, inner, bias = self.config.hidden_size, self.config.intermediate_size, self.config.mlp_bias
        up, down = (f"{self._layer_name(index)}.{name}" for name in self.mlp_names)
        return MLP(
            self._linear([(up, inner)], hidden, bias=bias, rows=[self._parallel.share(inner)], is_robust=True),
            activation(self.config.hidden_act, ACTIVATIONS),
            self._row_parallel_linear(down, hidden, inner, bias=bias, is_robust=True),
        )


class Starcoder2ForCausalLM(LayerNormDecoder):
    """StarCoder 2 (Lozhkov et al. 2024): a Mistral with LayerNorm, biases, and an MLP without a gate.

    LayerNormDecoder in which every layer has the window, if config.json states one.
    """

    mlp_names = ("mlp.c_fc", "mlp.c_proj")

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "tie_word_embeddings": True,
            "hidden_act": "gelu_pytorch_tanh",
            **raw,
            "layer_types": None,
            "rms_norm_eps": raw.get("norm_epsilon", 1e-5),
            "attention_bias": raw.get("use_bias", True),
            "mlp_bias": raw.get("use_bias", True),
        }
