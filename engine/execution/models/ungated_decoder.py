"""UngatedDecoder: base of later families with an MLP of two matrices, up and down, instead of three with a gate."""

from collections.abc import Callable

from torch import Tensor

from .decoder import Decoder
from .layers import ACTIVATIONS, MLP, Activation, activation


class UngatedDecoder(Decoder):
    """Decoder with an MLP of up_proj and down_proj alone."""

    def _load_mlp(self, index: int) -> Callable[[Tensor], Tensor]:
        hidden, inner, bias = self.config.hidden_size, self.config.intermediate_size, self.config.mlp_bias
        mlp, own = f"{self._layer_name(index)}.{self.names.mlp}", [self._parallel.share(self.config.intermediate_size)]
        return MLP(
            self._linear([(f"{mlp}.up_proj", inner)], hidden, bias=bias, rows=own, is_robust=True),
            self._activation(mlp),
            self._row_parallel_linear(f"{mlp}.down_proj", hidden, inner, bias=bias, is_robust=True),
        )

    def _activation(self, mlp: str) -> Activation:
        """Return the activation of the MLP with this name."""
        return activation(self.config.hidden_act, ACTIVATIONS)
