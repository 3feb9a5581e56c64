"""RopeConfig: rotary embedding from config.json, in old or new spelling, with all defaults filled in. No torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import ConfigError
from ...formats.json_file import positive_int, positive_number

ROPE_TYPES = ("default", "dynamic", "linear", "llama3", "longrope", "proportional", "yarn")


@dataclass(frozen=True, kw_only=True, eq=False)
class RopeConfig:
    """Rotary embedding of one kind of layer: base theta, rotated part of a head, scaling of positions."""

    theta: float
    rotary_dim: int  # number of rotated dimensions, a head's first; 0 if positions are learned instead
    scaling: dict[str, Any] = field(default_factory=dict)  # {}, or {"rope_type": …} and all fields of that type

    @classmethod
    def of_layers(cls, fields: Mapping[str, Any], *, layer_type: str, head_dim: int) -> "RopeConfig":
        """Build the config for one type of layer from `fields`, config.json; rope_parameters may nest types (Gemma 3).

        Raises ConfigError.
        """
        parameters = fields.get("rope_scaling") or fields.get("rope_parameters") or {}
        if layer_type in parameters:
            parameters = parameters[layer_type] or {}
        theta = positive_number(parameters, "rope_theta", positive_number(fields, "rope_theta", 10000.0))
        if theta <= 1.0:
            raise ConfigError(f"rope_theta must be above 1, not {theta}")
        head_dim = positive_int(parameters, "head_dim", head_dim)  # where a family's layers differ
        share = parameters.get("partial_rotary_factor", fields.get("partial_rotary_factor", 1.0))
        rotary_dim = int(head_dim * (1.0 if parameters.get("rope_type") == "proportional" else share))
        if rotary_dim % 2 or not 0 <= rotary_dim <= head_dim:
            raise ConfigError(
                f"{rotary_dim} of head_dim {head_dim} cannot turn: rotary embedding turns pairs, no odd one"
            )
        return cls(theta=theta, rotary_dim=rotary_dim, scaling=_scaling(parameters, fields, rotary_dim))


def _scaling(parameters: Mapping[str, Any], fields: Mapping[str, Any], rotary_dim: int) -> dict[str, Any]:
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind not in ROPE_TYPES:
        raise ConfigError(f"rope type {kind!r} is not known; known: {', '.join(ROPE_TYPES)}")
    # "dynamic" changes nothing up to max_position_embeddings, the longest request here.
    if kind in ("default", "dynamic"):
        return {}
    if kind == "linear":
        return {"rope_type": kind, "factor": positive_number(parameters, "factor")}
    if kind == "proportional":  # the first pairs of a head turn, with waves for the whole head (Gemma 4)
        share = parameters.get("partial_rotary_factor", 1.0)
        if not 0 <= share <= 1:
            raise ConfigError(f"partial_rotary_factor must be between 0 and 1, not {share}")
        factor = positive_number(parameters, "factor", 1.0)
        return {"rope_type": kind, "factor": factor, "num_pairs": int(share * rotary_dim // 2)}
    longest = positive_int(fields, "max_position_embeddings")
    trained = positive_number(parameters, "original_max_position_embeddings", float(longest))
    # Phi-3 has this field at the top level, which takes precedence.
    trained = positive_number(fields, "original_max_position_embeddings", trained)
    numbers = {"rope_type": kind, "original_max_position_embeddings": trained}
    if kind == "llama3":
        return numbers | {n: positive_number(parameters, n) for n in ("factor", "low_freq_factor", "high_freq_factor")}
    factor = positive_number(parameters, "factor", longest / trained)
    numbers |= {"factor": factor}
    return numbers | (_yarn(parameters, factor) if kind == "yarn" else _longrope(parameters, numbers, rotary_dim))


def _yarn(parameters: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """Return the fields of YaRN (Peng et al. 2023), including the mscale variants of the temperature."""

    def temperature(mscale: float) -> float:
        return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1.0 else 1.0

    mscale, mscale_all_dim = parameters.get("mscale"), parameters.get("mscale_all_dim")
    implied = temperature(mscale) / temperature(mscale_all_dim) if mscale and mscale_all_dim else temperature(1.0)
    return {
        "attention_factor": positive_number(parameters, "attention_factor", implied),
        "beta_fast": positive_number(parameters, "beta_fast", 32.0),
        "beta_slow": positive_number(parameters, "beta_slow", 1.0),
        "truncate": bool(parameters.get("truncate", True)),
    }


def _longrope(parameters: Mapping[str, Any], numbers: Mapping[str, Any], rotary_dim: int) -> dict[str, Any]:
    """Return the fields of LongRoPE (Ding et al. 2024): two lists of divisors, for short and for long contexts."""
    factor, trained = numbers["factor"], numbers["original_max_position_embeddings"]
    implied = math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1.0 else 1.0
    divisors = {name: [float(value) for value in parameters[name]] for name in ("short_factor", "long_factor")}
    for name, values in divisors.items():
        if len(values) != rotary_dim // 2 or not all(0 < value < math.inf for value in values):
            raise ConfigError(f"{name} must be {rotary_dim // 2} numbers above 0, one for each pair that turns")
    return divisors | {"attention_factor": positive_number(parameters, "attention_factor", implied)}
