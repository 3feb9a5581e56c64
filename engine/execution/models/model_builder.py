"""Builder of a family's model from any source of weights, packed as the settings say."""

from typing import Any

from ....kernels import ops
from ...extension import used
from ...formats.weights import WeightSource
from .device_memory import refusing_out_of_memory
from .registry import model_class
from .resolved_model import ResolvedModel
from .tensor_parallel import SINGLE_RANK, TensorParallel

_WEIGHT_BITS = {"int8": 8, "int4": 4}
# --quantization-activations: bits of inputs (`ops.pack_linear`); of MLPs' and experts', which lose less (RESULTS.md)
_INPUT_BITS = {"none": (16, 16), "auto": (16, ops.FAST_INPUTS), "int8": (8, 8)}
_TOO_LARGE = "the weights do not fit; try --quantization fp8, int8 or int4, or a smaller model"


def build_model(resolved: ResolvedModel, weights: WeightSource, *, parallel: TensorParallel = SINGLE_RANK) -> Any:
    """Build a model of the weights that a source has, packed as the settings say. Raises ConfigError."""
    config, model = resolved.config, resolved.model
    family = model_class(model.architecture, impl=model.impl)
    for extension in used(config):
        if extension.decoder_wrapper is not None:
            family = extension.load(extension.decoder_wrapper)(family)
    with refusing_out_of_memory(_TOO_LARGE):
        return family(
            model,
            weights,
            device=resolved.device,
            max_model_len=config.max_model_len,
            dtype=resolved.dtype,
            weight_bits=_WEIGHT_BITS.get(config.quantization or "", 16),
            input_bits=_INPUT_BITS[config.quantization_activations],
            has_fp8_weights=config.quantization == "fp8",
            parallel=parallel,
        )
