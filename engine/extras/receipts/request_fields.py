"""Request fields of a receipt: the sampling parameters that decide tokens or an end, as JSON values and back."""

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from ...checks import Integer
from ...core.sampling_params import SamplingParams
from ...errors import InvalidRequestError
from ...language.chat.reasoning_parser import reasoning_format
from ...language.structured_output.params import StructuredOutputs

# Without one of them the same seed could give other tokens or another end. max_tokens is the limit that was in force.
NAMES = (
    *("n", "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "bad_words", "allowed_token_ids"),
    *("stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "skip_special_tokens"),
)
_ALL = {*NAMES, "structured_outputs"}
_MAX_TOKENS = Integer(1, 2**31 - 1)
_PARAM = "receipt.request"
_THINKING = "thinking"


def request_fields(params: SamplingParams, *, max_tokens: int) -> dict[str, Any]:
    """Return the fields of a receipt. `max_tokens`: the most tokens that an output could have."""
    values = {name: _json(getattr(params, name)) for name in NAMES} | {"max_tokens": max_tokens}
    outputs = params.structured_outputs
    parts = None if outputs is None else {item.name: _json(getattr(outputs, item.name)) for item in fields(outputs)}
    values |= {"structured_outputs": parts}
    if params.thinking_budget in (None, -1):  # receipts without a limit of reasoning stay as they were
        return values
    form = params.reasoning_format
    return values | {
        _THINKING: {"budget": params.thinking_budget, "form": None if form is None else _json(asdict(form))}
    }


def read_params(values: Mapping[str, Any], *, seed: int) -> SamplingParams:
    """Return the parameters of a receipt's fields. Raises InvalidRequestError unless all are there and valid."""
    if wrong := sorted(_ALL ^ (values.keys() - {_THINKING})):
        raise InvalidRequestError(f"{_PARAM}.{wrong[0][:100]} is missing or unknown", param=_PARAM)
    _MAX_TOKENS.checked(f"{_PARAM}.max_tokens", values["max_tokens"])
    names = {name: f"{_PARAM}.{name}" for name in _ALL}
    given = {name: value for name, value in values.items() if value is not None and name != _THINKING}
    params = SamplingParams.from_fields(given | {"seed": seed, **_outputs(values)}, names=names)
    return _limited(params, values[_THINKING]) if _THINKING in values else params


def _limited(params: SamplingParams, thinking: Any) -> SamplingParams:
    """Return the parameters with their limit of reasoning."""
    try:
        form = thinking["form"]
        own = reasoning_format(form) if form else None
        return replace(params, thinking_budget=thinking["budget"], reasoning_format=own)
    except (TypeError, KeyError) as exc:
        raise InvalidRequestError(f"{_PARAM}.{_THINKING} has not the fields of a limit", param=_PARAM) from exc


def _outputs(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the constraint, with the fields that only the server sets."""
    parts = values["structured_outputs"]
    if parts is None:
        return {}
    known = {item.name: type(item.default) for item in fields(StructuredOutputs)}
    is_whole = isinstance(parts, Mapping) and parts.keys() == known.keys()
    if not is_whole or not all(isinstance(parts[name], bool) for name, is_a in known.items() if is_a is bool):
        raise InvalidRequestError(f"{_PARAM}.structured_outputs has not the fields of a constraint", param=_PARAM)
    if not isinstance(parts["param"], str | None):
        raise InvalidRequestError(f"{_PARAM}.structured_outputs.param must be a string", param=_PARAM)
    return {"structured_outputs": StructuredOutputs(**parts)}


def _json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): item for name, item in value.items()}
    return list(value) if isinstance(value, tuple) else value
