"""RopeScaling: --rope-scaling put into a model's fields, so that it serves more positions than it was made for."""

from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError
from ...formats.positive_numbers import positive_number

_ORIGINAL = "original_max_position_embeddings"
_KINDS = ("linear", "llama3", "yarn")
_WHY = {
    "dynamic": "dynamic turns keys by the length of their request, so none could be cached; use yarn or linear",
    "longrope": "longrope's factors come with a model's own files; use yarn or linear",
}
_KEPT = ("rope_theta", "partial_rotary_factor")  # fields of a model's own rope that scaling leaves


def scaled(fields: Mapping[str, Any], scaling: Mapping[str, Any]) -> dict[str, Any]:
    """Return a family's normalized fields with this scaling in place of their own, and with the longer context.

    `factor` times the original length is the new one. Raises ConfigError.
    """
    kind = scaling.get("rope_type") or scaling.get("type")
    if kind not in _KINDS:
        raise ConfigError(_WHY.get(str(kind), f"rope_type {kind!r} is not known; known: {', '.join(_KINDS)}"))
    own = fields.get("rope_scaling") or fields.get("rope_parameters") or {}
    if any(isinstance(value, Mapping) for value in own.values()):
        raise ConfigError("this model has several rotary embeddings, which are not scaled together")
    if fields.get("partial_rotary_factor") == 0.0:
        raise ConfigError("this model learned its positions, so there are no more of them")
    names = (scaling, own, fields)
    original = next((n[_ORIGINAL] for n in names if n.get(_ORIGINAL)), fields["max_position_embeddings"])
    length = int(positive_number(scaling, "factor") * positive_number({_ORIGINAL: original}, _ORIGINAL))
    kept = {name: own[name] for name in _KEPT if name in own}
    parameters = {**kept, _ORIGINAL: original, **scaling, "rope_type": kind}
    return {**fields, "rope_scaling": parameters, "max_position_embeddings": length}
