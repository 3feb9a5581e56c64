"""Probe: runs a model without memory once, and learns each layer's attention. Refuses by name what does not fit."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...errors import ConfigError
from .attention import running

_NUM_TOKENS = 2
# Options of an attention call that do not change the result here, or that are read.
_KNOWN_OPTIONS = {
    "scaling", "softcap", "dropout", "sliding_window", "is_causal", "position_ids", "use_cache", "cache_position",
    "output_attentions", "output_hidden_states", "output_router_logits", "return_dict", "deterministic",
}  # fmt: skip


class LayerAttention(NamedTuple):
    """Attention of one layer."""

    num_heads: int
    num_kv_heads: int
    head_dim: int  # width of queries and keys; narrower values are padded
    scale: float
    sliding_window: int
    softcap: float


class _Mask:
    """Description of a mask that takes the mask's way through the layers."""

    def __init__(self, window: int) -> None:
        self.window = window

    def __getitem__(self, key: Any) -> "_Mask":
        return self

    def to(self, *args: Any, **options: Any) -> "_Mask":
        return self


class Probe:
    """Forward that records what each layer passes to its attention function."""

    def __init__(self, num_positions: int) -> None:
        self._num_positions = num_positions
        self.layers: dict[int, LayerAttention] = {}

    def mask(self, mask_function: Callable[..., Any]) -> _Mask:
        """Describe a mask by the keys that the last position and the middle one see. Raises ConfigError."""
        longest = self._num_positions
        windows = [_num_visible(mask_function, query, longest) for query in (longest - 1, longest // 2)]
        if windows[1] != min(windows[0], longest // 2 + 1):
            raise ConfigError("its mask is neither causal nor a sliding window (chunked attention is not built)")
        return _Mask(0 if windows[0] == longest else windows[0])

    def attend(self, module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, options: dict[str, Any]) -> Tensor:
        index = getattr(module, "layer_idx", None)
        if index is None or index in self.layers:
            raise ConfigError(f"{type(module).__name__} attends twice in a layer, or its layer has no number")
        if not isinstance(mask, _Mask):
            raise ConfigError(f"{type(module).__name__} makes a mask of its own (as ALiBi does)")
        unknown = {name for name, value in options.items() if value is not None and name not in _KNOWN_OPTIONS}
        if unknown:
            raise ConfigError(f"{type(module).__name__} gives its attention {', '.join(sorted(unknown))}")
        if q.shape[2] != _NUM_TOKENS or k.shape[2] != _NUM_TOKENS:
            raise ConfigError(f"{type(module).__name__} attends to more than the tokens (cross attention)")
        if v.shape[3] > k.shape[3] or q.shape[3] != k.shape[3]:
            raise ConfigError(f"{type(module).__name__} has values wider than its keys")
        scale = options.get("scaling")
        self.layers[index] = LayerAttention(
            num_heads=q.shape[1],
            num_kv_heads=k.shape[1],
            head_dim=k.shape[3],
            scale=k.shape[3] ** -0.5 if scale is None else float(scale),
            sliding_window=mask.window,
            softcap=float(options.get("softcap") or 0.0),
        )
        return q.new_empty(q.shape[0], _NUM_TOKENS, q.shape[1], v.shape[3])


def _num_visible(mask_function: Callable[..., Any], query: int, longest: int) -> int:
    """Return how many of the last keys up to its own a query sees. Raises ConfigError for another pattern."""
    keys = torch.arange(longest + 1)
    try:
        visible = torch.as_tensor(mask_function(0, 0, torch.tensor(query), keys)).expand(longest + 1)
        seen = int(visible.sum())
    except (RuntimeError, NotImplementedError, TypeError) as exc:
        raise ConfigError("its mask depends on more than positions (chunked or packed attention)") from exc
    if not seen or not bool(visible[query + 1 - seen : query + 1].all()):
        raise ConfigError("its mask is neither causal nor a sliding window")
    return seen


def probe(model: Any, *, num_positions: int) -> list[LayerAttention]:
    """Run a model on the meta device once and return its layers' attention. Raises ConfigError without a prefix."""
    if not model._supports_attention_backend:
        raise ConfigError("it does not use transformers' attention interface")
    if state := _state_of(model):
        raise ConfigError(f"it keeps a state between tokens ({state})")
    found, ids = Probe(num_positions), torch.zeros(1, _NUM_TOKENS, dtype=torch.int64, device="meta")
    try:
        with running(found), torch.no_grad():
            model(
                input_ids=ids, position_ids=torch.zeros_like(ids), attention_mask=torch.ones_like(ids), use_cache=False
            )
    except (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError, KeyError) as exc:
        raise ConfigError(f"transformers cannot run it without weights ({type(exc).__name__}: {exc})") from exc
    num_layers = model.config.num_hidden_layers
    if sorted(found.layers) != list(range(num_layers)):
        raise ConfigError(f"only {len(found.layers)} of its {num_layers} layers use transformers' attention interface")
    layers = [found.layers[index] for index in range(num_layers)]
    if len({(layer.num_kv_heads, layer.head_dim) for layer in layers}) > 1:
        raise ConfigError("its layers' keys differ in shape")
    return layers


def _state_of(model: Any) -> str | None:
    """Return the kind of a state besides keys and values; None without one."""
    if getattr(model, "_is_stateful", False):
        return "recurrent or linear attention"
    if kinds := set(getattr(model.config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}:
        return ", ".join(sorted(map(str, kinds)))
    mixing = (nn.Conv1d, nn.Conv2d, nn.RNNBase)
    found = next((module for module in model.modules() if isinstance(module, mixing)), None)
    return None if found is None else type(found).__name__
