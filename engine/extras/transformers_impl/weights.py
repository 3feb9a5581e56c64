"""Loading of transformers' modules from a WeightSource: linears are packed, other parts converted if need be."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import convert_and_load_state_dict_in_model, revert_weight_conversion
from transformers.modeling_utils import LoadStateDictConfig
from transformers.utils import logging

from ....kernels import ops
from ...errors import ConfigError
from ...execution.models.weights import WeightSource

_LAYER = re.compile(r"\.\d+\.")


class PackedLinear(nn.Module):
    """Linear layer whose weight is packed for `ops.linear`."""

    def __init__(self, linear: nn.Linear, packed: Any, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = torch.empty(0, dtype=dtype, device=device)  # some modules ask for its dtype
        self._packed = packed

    def forward(self, x: Tensor) -> Tensor:
        return ops.linear(x.reshape(-1, x.shape[-1]), self._packed).view(*x.shape[:-1], self.out_features)


@contextmanager
def _without_progress() -> Iterator[None]:
    """Keep transformers from drawing a bar for each layer."""
    was_shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_shown:
            logging.enable_progress_bar()


class ModuleLoader:
    """Loader of one model's modules; raises ConfigError."""

    def __init__(
        self, model: Any, source: WeightSource, *, dtype: torch.dtype, device: torch.device, pack: Callable[..., Any]
    ) -> None:
        """`pack`: makes the packed product of a weight and a bias, for a head or not."""
        self._model = model
        self._source = source
        self._dtype = dtype
        self._device = device
        self._pack = pack
        self._prefix = f"{model.base_model_prefix}."
        self._tied: dict[str, str] = dict(model.all_tied_weights_keys)

    def load(self) -> None:
        """Load all weights, pack the linears, and check that no tensor stays unread."""
        self._fill_buffers()
        state = {name: tensor for name, tensor in self._model.state_dict().items() if name not in self._tied}
        converted = {name for name in state if self._stored(name) is None}
        linears = self._linears()
        for name, tensor in state.items():
            if name not in converted and name not in linears and tensor.is_floating_point():
                self._set(name, self._take(name, tensor.shape))
        if converted:
            self._convert(converted)
        self._model.tie_weights()
        for name, linear in linears.items():
            self._replace(name, linear)
        self._check_unread()

    def _linears(self) -> dict[str, nn.Linear]:
        """Map names of weights to the linears that have them."""
        found = self._model.named_modules(remove_duplicate=False)
        return {f"{name}.weight": module for name, module in found if type(module) is nn.Linear}

    def _fill_buffers(self) -> None:
        """Compute the tables that no file has, by the modules' own initialization."""
        for module in self._model.modules():
            if buffers := {name: buffer for name, buffer in module._buffers.items() if buffer is not None}:
                for name, buffer in buffers.items():
                    module._buffers[name] = torch.empty_like(buffer, device=self._device)
                self._model._init_weights(module)

    def _stored(self, name: str) -> str | None:
        """Return a parameter's name in the files, which may hold the base model only; None if it is not there."""
        bare = name.removeprefix(self._prefix)
        return next((known for known in (name, bare) if self._source.has(known)), None)

    def _take(self, name: str, shape: Any) -> Tensor:
        return self._source.take(self._stored(name) or name, tuple(shape)).to(self._device)

    def _set(self, name: str, tensor: Tensor) -> None:
        path, _, part = name.rpartition(".")
        module = self._model.get_submodule(path)
        if part in module._buffers:
            module._buffers[part] = tensor.to(module._buffers[part].dtype)
        else:
            setattr(module, part, nn.Parameter(tensor, requires_grad=False))

    def _convert(self, names: set[str]) -> None:
        """Load parameters that the files have in other pieces, such as experts one by one, layer by layer."""
        model, state = self._model, self._model.state_dict()
        groups: dict[str, dict[str, Tensor]] = defaultdict(dict)
        for name in sorted(names):
            groups[(_LAYER.search(name) or [""])[0]][name] = state[name]
        for group in groups.values():
            pieces = revert_weight_conversion(model, {name: tensor.to("meta") for name, tensor in group.items()})
            taken = {name: self._take(name, tensor.shape) for name, tensor in pieces.items()}
            config = LoadStateDictConfig(
                dtype=self._dtype, device_map={"": self._device}, weight_mapping=get_model_conversion_mapping(model)
            )
            with _without_progress():
                convert_and_load_state_dict_in_model(model, taken, config)

    def _replace(self, name: str, linear: nn.Linear) -> None:
        path = name.removesuffix(".weight")
        weight: Any = linear.weight
        if weight.is_meta and self._device.type != "meta":
            stored, shape = self._stored(name) or name, tuple(weight.shape)
            weight = self._source.take_quantized(stored, (shape[0], shape[1]))
            weight = self._take(name, shape) if weight is None else weight.to(self._device)
        elif self._device.type == "meta" and name not in self._tied:
            weight = self._source.take_quantized(name, tuple(weight.shape)) or self._take(name, weight.shape)
        is_head = linear is self._model.get_output_embeddings()
        packed = self._pack(weight, linear.bias, is_head=is_head)
        parent, _, part = path.rpartition(".")
        setattr(self._model.get_submodule(parent), part, PackedLinear(linear, packed, self._dtype, self._device))

    def _check_unread(self) -> None:
        model = self._model
        ignored = [re.compile(str(pattern)) for pattern in model._keys_to_ignore_on_load_unexpected or ()]
        tied = {*self._tied, "lm_head.weight"}
        unread = [
            name
            for name in self._source.unread()
            if name not in tied and not name.endswith("inv_freq") and not any(p.search(name) for p in ignored)
        ]
        if unread:
            raise ConfigError(
                f"the weights have tensors that {type(model).__name__} would not read, {unread[0]!r} for one of "
                f"{len(unread)}; do they belong to this config.json?"
            )
