"""Builder of a family's model from any source of weights, packed as the settings say."""

from typing import Any

import torch

from ....kernels import ops
from ...config import EngineConfig
from ...extension import load_extra
from ...formats.weights import WeightSource
from .config import ModelConfig
from .device_memory import refusing_out_of_memory
from .registry import model_class
from .tensor_parallel import ALONE, TensorParallel

_WEIGHT_BITS = {"int8": 8, "int4": 4}
# --quantization-activations: bits of inputs (`ops.pack_linear`); of MLPs' and experts', which lose less (RESULTS.md)
_INPUT_BITS = {"none": (16, 16), "auto": (16, ops.FAST_INPUTS), "int8": (8, 8)}
_TOO_LARGE = "the weights do not fit; try --quantization fp8, int8 or int4, or a smaller model"


def build_model(
    config: EngineConfig,
    weights: WeightSource,
    model_config: ModelConfig,
    *,
    device: torch.device,
    dtype: torch.dtype,
    max_model_len: int,
    parallel: TensorParallel = ALONE,
) -> Any:
    """Build a model of the weights that a source has, packed as the settings say. Raises ConfigError."""
    family = model_class(model_config.architecture, impl=model_config.impl)
    if config.enable_lora:
        family = load_extra("lora.adapted", needed_for="--enable-lora").adapted(family)
    with refusing_out_of_memory(_TOO_LARGE):
        return family(
            model_config,
            weights,
            device=device,
            max_model_len=max_model_len,
            dtype=dtype,
            weight_bits=_WEIGHT_BITS.get(config.quantization or "", 16),
            input_bits=_INPUT_BITS[config.quantization_activations],
            has_fp8_weights=config.quantization == "fp8",
            parallel=parallel,
        )
