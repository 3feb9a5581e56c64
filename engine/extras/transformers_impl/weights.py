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
from ...formats.weights import WeightSource

_LAYER = re.compile(r"\.\d+\.")


# Linears of one module that get the same input, so one product computes them.
_SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class _Product:
    """Packed product of siblings, computed when the first of them gets its input, and kept until the last has."""

    def __init__(self, packed: Any, num_readers: int) -> None:
        self.packed = packed
        self.num_readers = num_readers
        self._num_reads = 0
        self._kept: tuple[Tensor, Tensor] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        if self._kept is None or self._kept[0] is not x:
            out = ops.linear(x.reshape(-1, x.shape[-1]), self.packed)
            self._kept, self._num_reads = (x, out.view(*x.shape[:-1], -1)), 0
        out, self._num_reads = self._kept[1], self._num_reads + 1
        if self._num_reads >= self.num_readers:
            self._kept = None
        return out


class PackedLinear(nn.Module):
    """Linear layer whose weight is packed for `ops.linear`, perhaps with its siblings'."""

    def __init__(
        self, linear: nn.Linear, product: _Product, columns: slice, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = torch.empty(0, dtype=dtype, device=device)  # some modules ask for its dtype
        self.product = product
        self._columns = columns
        self._is_whole = product.num_readers == 1

    def __call__(self, x: Tensor) -> Tensor:  # without nn.Module's hooks
        out = self.product(x)
        return out if self._is_whole else out[..., self._columns]


class NativeNorm(nn.Module):
    """RMS norm by `ops.rms_norm`."""

    def __init__(self, weight: nn.Parameter, eps: float) -> None:
        super().__init__()
        self.weight = weight
        self.variance_epsilon = eps

    def __call__(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x.reshape(-1, x.shape[-1]), self.weight, eps=self.variance_epsilon).view(x.shape)


class NativeMLP(nn.Module):
    """Gated MLP with SiLU, by two products."""

    def __init__(self, gate_up: Any, down: PackedLinear) -> None:
        super().__init__()
        self._gate_up = gate_up
        self._down = down.product

    def __call__(self, x: Tensor) -> Tensor:
        hidden = ops.linear_silu_mul(x.reshape(-1, x.shape[-1]), self._gate_up)
        return self._down(hidden).view(x.shape)


def _native_mlp(module: nn.Module) -> NativeMLP | None:
    """Return the MLP that gives what this module gives to random inputs; None if it is another function."""
    parts = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    gate, up, down = (part if isinstance(part, PackedLinear) else None for part in parts)
    if gate is None or up is None or down is None or gate.product is not up.product:
        return None
    if down.out_features != gate.in_features or gate.weight.is_meta:
        return None
    mlp, rng = NativeMLP(gate.product.packed, down), torch.Generator().manual_seed(0)
    x = torch.randn(1, 2, gate.in_features, generator=rng).to(gate.weight.device, gate.weight.dtype)
    try:
        expected = module(x)
    except (RuntimeError, TypeError):
        return None
    return mlp if _is_close(mlp(x), expected) else None


def _is_close(found: Tensor, expected: Any) -> bool:
    if not isinstance(expected, Tensor) or expected.shape != found.shape:
        return False
    share = 1e-5 if found.dtype == torch.float32 else 2e-2
    return bool((found - expected).abs().amax() <= share * expected.abs().amax())


def _native_norm(module: nn.Module) -> NativeNorm | None:
    """Return the norm that gives what this module gives to random inputs; None if it is another function."""
    weight, eps = getattr(module, "weight", None), getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not type(module).__name__.endswith("RMSNorm") or not isinstance(eps, float) or not isinstance(weight, Tensor):
        return None
    if weight.ndim != 1 or weight.is_meta:
        return None
    norm, rng = NativeNorm(nn.Parameter(weight, requires_grad=False), eps), torch.Generator().manual_seed(0)
    x = torch.randn(2, len(weight), generator=rng) * torch.tensor([[1.0], [eps**0.5]])
    x = x.to(weight.device, weight.dtype)
    return norm if _is_close(norm(x), module(x)) else None


def _siblings(linears: dict[str, nn.Linear]) -> Iterator[dict[str, nn.Linear]]:
    """Yield groups of linears that get the same input, each under the names of their weights."""
    left = dict(linears)
    while left:
        path, _, part = next(iter(left)).removesuffix(".weight").rpartition(".")
        names = next((names for names in _SIBLINGS if part in names), (part,))
        group = [
            name
            for name in (f"{path}.{sibling}.weight" if path else f"{sibling}.weight" for sibling in names)
            if name in left
        ]
        yield {name: left.pop(name) for name in group}


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
        for group in _siblings(linears):
            self._replace(group)
        self._replace_parts()
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

    def _replace(self, group: dict[str, nn.Linear]) -> None:
        """Pack linears, siblings as one product if their weights are of one kind."""
        head = self._model.get_output_embeddings()
        weights = {name: self._weight_of(name, linear) for name, linear in group.items()}
        kinds = {(type(weights[name]), linear.bias is None, linear.in_features) for name, linear in group.items()}
        for part in [group] if len(kinds) == 1 else [{name: linear} for name, linear in group.items()]:
            biases: list[Tensor] = [linear.bias for linear in part.values() if linear.bias is not None]
            bias = torch.cat(biases) if biases else None
            is_head = any(linear is head for linear in part.values())
            self._set_product(part, self._pack([weights[name] for name in part], bias, is_head=is_head))

    def _weight_of(self, name: str, linear: nn.Linear) -> Any:
        weight: Any = linear.weight
        if weight.is_meta and self._device.type != "meta":
            stored, shape = self._stored(name) or name, tuple(weight.shape)
            weight = self._source.take_quantized(stored, (shape[0], shape[1]))
            weight = self._take(name, shape) if weight is None else weight.to(self._device)
        elif self._device.type == "meta" and name not in self._tied:
            weight = self._source.take_quantized(name, tuple(weight.shape)) or self._take(name, weight.shape)
        return weight

    def _set_product(self, group: dict[str, nn.Linear], packed: Any) -> None:
        product, start = _Product(packed, len(group)), 0
        for name, linear in group.items():
            columns = slice(start, start := start + linear.out_features)
            module = PackedLinear(linear, product, columns, dtype=self._dtype, device=self._device)
            self._put(name.removesuffix(".weight"), module)

    def _replace_parts(self) -> None:
        for name, module in list(self._model.named_modules()):
            if (native := _native_norm(module) or _native_mlp(module)) is not None:
                self._put(name, native)

    def _put(self, path: str, module: nn.Module) -> None:
        parent, _, part = path.rpartition(".")
        setattr(self._model.get_submodule(parent), part, module)

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
