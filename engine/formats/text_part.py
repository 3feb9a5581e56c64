"""TextPart: the text model within a checkpoint of a model with images or sound, whose other tensors stay unread."""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from ...kernels.ops import QuantizedWeight

# Beginnings of the text model's names in a wrapper, and of the same names in the text model alone.
_PREFIXES = (("model.language_model.", "model."), ("model.text_model.", "model."), ("language_model.", ""))
_NOT_TEXT = re.compile(
    r"(^|\.)(visual|vision\w*|image\w*|audio\w*|multi_modal\w*|mm_\w+|connector|mlp1|sound\w*|talker)\."
)


def text_names(names: Iterable[str]) -> dict[str, str]:
    """Map the text model's names to those in the files; other tensors are left out."""
    names = list(names)
    prefix, ours = next((pair for pair in _PREFIXES if any(name.startswith(pair[0]) for name in names)), ("", ""))
    found = {ours + name.removeprefix(prefix): name for name in names if name.startswith(prefix)}
    if head := next((name for name in names if name.endswith("lm_head.weight")), None):
        found.setdefault("lm_head.weight", head)
    return {ours: name for ours, name in found.items() if not _NOT_TEXT.search(ours)}


class TextPart:
    """WeightSource with the names of the text model alone."""

    def __init__(self, source: Any) -> None:
        """`source`: the WeightSource of the whole checkpoint."""
        self._source = source
        self._names = text_names(source.unread())

    def take(self, name: str, shape: tuple[int, ...]) -> "Tensor":
        return self._source.take(self._names.get(name, name), shape)  # type: ignore[no-any-return]

    def take_quantized(self, name: str, shape: tuple[int, ...]) -> "QuantizedWeight | None":
        return self._source.take_quantized(self._names.get(name, name), shape)  # type: ignore[no-any-return]

    def has(self, name: str) -> bool:
        return name in self._names

    def unread(self) -> list[str]:
        left = set(self._source.unread())
        return [ours for ours, name in self._names.items() if name in left]
